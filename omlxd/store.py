"""Small JSON files that survive a crash: written whole or not at all, never silently lost."""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PRIVATE = 0o600
LARGEST = 16 * 1024 * 1024
"""Bytes; state files are small, so a larger file was not written by omlxd."""


class DamagedFile(Exception):
    """A damaged state file. It was moved to ``aside``; None when the move failed too.

    The next ``read_json`` finds no file, so the owner of the file goes on with its defaults.
    """

    def __init__(self, path: Path, aside: Path | None, reason: str) -> None:
        kept = f"; it was kept as {aside.name}" if aside is not None else ""
        super().__init__(f"{path.name} {reason}{kept}")
        self.path = path
        self.aside = aside
        self.reason = reason


class StateFile:
    """A JSON object that its owner keeps in the state folder.

    Without a folder nothing is stored. The methods use the disk: not for the event loop.
    """

    def __init__(self, folder: Path | None, name: str) -> None:
        self._name = name
        self._path = None if folder is None else folder / name
        self.trouble: str | None = None
        """For people: why the last read or write failed."""

    def read(self) -> dict[str, Any]:
        """The stored object. Empty without a file, or when it cannot be read: see ``trouble``."""
        try:
            found = {} if self._path is None else read_json(self._path)
        except DamagedFile as damaged:
            self.trouble = str(damaged)
        except OSError as error:
            self.trouble = f"{self._name} cannot be read ({error.strerror})"
        else:
            if found is None or isinstance(found, dict):
                return found or {}
            self.trouble = f"{self._name} holds no JSON object"
        return {}

    def write(self, value: Mapping[str, Any]) -> None:
        """Raises the errors of ``write_json``; ``trouble`` then has the text too."""
        try:
            if self._path is not None:
                write_json(self._path, dict(value))
        except (OSError, ValueError, TypeError) as error:
            self.trouble = f"{self._name} cannot be written ({error})"
            raise
        self.trouble = None


def read_json(path: Path) -> Any | None:
    """The value that was written to ``path``; None when there is no such file.

    Raises DamagedFile when the file is not JSON, and OSError when it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        return None
    if len(data) > LARGEST:
        raise DamagedFile(path, _move_aside(path), "is far too large")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(path, _move_aside(path), "is not valid JSON") from error


def peek_json(path: Path) -> Mapping[str, Any] | None:
    """The JSON object in ``path``, which may belong to another program; changes nothing.

    None when there is no file, it cannot be read, or it is not a JSON object.
    """
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: Any) -> None:
    """Replace the content of ``path`` by ``value``; only its owner can read the file.

    After a crash the file holds the old value or the new one. Raises OSError (the old value
    is still there), ValueError or TypeError when JSON cannot hold ``value``.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A path may hold bytes that are not UTF-8 (lone surrogates). JSON writes them as escapes.
    write_atomically(path, text.encode(errors="backslashreplace"), PRIVATE)


def write_atomically(path: Path, content: bytes, mode: int) -> None:
    """Replace ``path`` by ``content``; a reader sees the old or the new file, never a part.

    Raises OSError; ``path`` is then unchanged.
    """
    # mkstemp makes the file with mode 0600 and follows no link.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(handle, mode)
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def sweep(folder: Path) -> int:
    """Remove the files of interrupted writes. Returns their number. Called at start."""
    left = list(folder.glob(".*.*.tmp"))
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)


def _move_aside(path: Path) -> Path | None:
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        os.replace(path, aside)
    except OSError:
        return None
    return aside


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power loss. Some volumes refuse; there it may not survive."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
