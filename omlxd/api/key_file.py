"""The file of API keys: their names, scopes and hashes.

A key is 256 random bits, so nobody can find it from its SHA-256. A slow hash, as for passwords,
would only let callers with wrong keys use up our time.
"""

import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from omlxd.errors import ConfigError, InvalidRequest, NotFound
from omlxd.store import write_json

FILE: Final = "keys.json"
LOCAL_FILE: Final = "local.key"
"""Beside that file: the key of this run, for the commands of the daemon's own user."""
PREFIX: Final = "omlxd_"
LARGEST: Final = 1024 * 1024
"""Bytes; some thousands of keys."""

_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class Scope(Enum):
    """What a key allows."""

    INFERENCE = "inference"
    """Ask models for answers, and list them."""
    CONTROL = "control"
    """Read the status of the server and change it: guard, loading, unloading, settings."""
    ALL = "all"

    def covers(self, needed: "Scope") -> bool:
        return self is Scope.ALL or self is needed


@dataclass(frozen=True, slots=True)
class StoredKey:
    """Attributes:
    digest: ``digest`` of the key, 64 hexadecimal digits.
    created_at: seconds since 1970.
    """

    name: str
    scope: Scope
    digest: str
    created_at: float


def new_key() -> str:
    """A random key of 256 bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(key: str) -> str:
    """The SHA-256 of ``key``, which is what is stored.

    White space around the key and base64 padding are left out: they are easily lost or added when
    a key is copied.
    """
    bare = key.strip().rstrip("=").rstrip()
    return hashlib.sha256(bare.encode("utf-8", "surrogateescape")).hexdigest()


def path_in(state: Path) -> Path:
    return state / FILE


def read_keys(path: Path, *, owner: int | None = None) -> tuple[StoredKey, ...]:
    """The keys; none when there is no file. ``owner``: the user who must own it; None: this one.

    Raises ConfigError when other users can read or replace the file, or when it is damaged: without
    its keys the server would be open.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError([f"{path}: the key file cannot be read: {error.strerror}"]) from None
    with os.fdopen(descriptor, "rb") as file:
        _check_safe(path, os.fstat(descriptor), owner)
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise _damaged(path, "it is far too large")
    try:
        return _parse(json.loads(data))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None


def add_key(path: Path, name: str, scope: Scope, now: float) -> str:
    """Make a key called ``name``. Its text is returned, and stored nowhere.

    Raises InvalidRequest for a bad or taken name, ConfigError as ``read_keys``, OSError.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name!r} is no name for a key: use up to 64 letters, digits, '.', '_' and '-', "
            "a letter or digit first."
        )
    with _locked(path):
        keys = read_keys(path)
        if any(key.name == name for key in keys):
            raise InvalidRequest(
                f"There is a key '{name}' already. Choose another name, or revoke it first."
            )
        key = new_key()
        _write(path, (*keys, StoredKey(name, scope, digest(key), now)))
    return key


def revoke_key(path: Path, name: str) -> tuple[StoredKey, ...]:
    """Remove the key ``name``; returns the others. Raises NotFound, ConfigError, OSError."""
    with _locked(path):
        keys = read_keys(path)
        left = tuple(key for key in keys if key.name != name)
        if len(left) == len(keys):
            known = ", ".join(key.name for key in keys) or "none at all"
            raise NotFound(f"There is no key '{name}'; there is {known}.")
        _write(path, left)
    return left


def _parse(value: Any) -> tuple[StoredKey, ...]:
    if value["version"] != _VERSION:
        raise ValueError(f"version {value['version']!r} is of another omlxd")
    keys = tuple(
        StoredKey(entry["name"], Scope(entry["scope"]), entry["sha256"], float(entry["created_at"]))
        for entry in value["keys"]
    )
    for key in keys:
        if not _NAME.fullmatch(key.name) or not _DIGEST.fullmatch(key.digest):
            raise ValueError("a key has no proper name or hash")
    if len({key.name for key in keys}) != len(keys):
        raise ValueError("two keys have one name")
    return keys


def _write(path: Path, keys: Sequence[StoredKey]) -> None:
    entries = [
        {
            "name": key.name,
            "scope": key.scope.value,
            "sha256": key.digest,
            "created_at": key.created_at,
        }
        for key in keys
    ]
    # A new file with mode 0600 (O_CREAT|O_EXCL|O_NOFOLLOW) and renamed over the old one.
    write_json(path, {"version": _VERSION, "keys": entries})


def _check_safe(path: Path, file: os.stat_result, owner: int | None) -> None:
    mistakes = []
    expected = os.geteuid() if owner is None else owner
    if not stat.S_ISREG(file.st_mode):
        mistakes.append(f"{path}: the key file is not a regular file; remove it")
    if file.st_uid != expected:
        # Root may only read it: the file must stay readable for the daemon's own user.
        chown = "" if expected == 0 else f", or: sudo chown {expected} '{path}'"
        mistakes.append(
            f"{path}: the key file belongs to another user (uid {file.st_uid}); run this as that "
            f"user{chown}"
        )
    if file.st_mode & 0o077:
        mistakes.append(
            f"{path}: other users may read or change the key file "
            f"(mode {stat.S_IMODE(file.st_mode):04o}): chmod 600 '{path}'"
        )
    folder = path.parent.stat()
    if folder.st_mode & 0o022:
        mistakes.append(
            f"{path.parent}: other users may replace the key file in this folder "
            f"(mode {stat.S_IMODE(folder.st_mode):04o}): chmod 700 '{path.parent}'"
        )
    if mistakes:
        raise ConfigError(mistakes)


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(
        [f"{path}: the key file is damaged ({why}); restore it, or remove it and add keys anew"]
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process writes at a time. Makes a missing folder; refuses another user's folder."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = path.parent.stat().st_uid
    if owner != os.geteuid():
        raise ConfigError(
            [f"{path.parent}: this folder belongs to uid {owner}; run this as that user"]
        )
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path.with_name(f"{path.name}.lock"), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
