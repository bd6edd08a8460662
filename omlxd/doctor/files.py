"""Checks the files and folders: their permissions, their content and the free disk space."""

import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from omlxd.api.key_file import path_in, read_keys
from omlxd.config.paths import Paths
from omlxd.doctor.finding import Finding, fail, ok, warn
from omlxd.errors import ConfigError
from omlxd.library.catalog import RootScan, RootState
from omlxd.library.folder import HeaderCache
from omlxd.library.scan import scan_root
from omlxd.service import access
from omlxd.service.job import Account, JobSpec
from omlxd.units import GiB, format_bytes

ASKED_FOR = ("Desktop", "Documents", "Downloads")
"""Folders of a home. macOS asks the user once for each program that wants to read them."""
LITTLE_ROOM = 5 * GiB
READABLE = access.READ | access.ENTER
PRIVACY = (
    "System Settings > Privacy & Security > Full Disk Access (or Files & Folders): allow the "
    "Python that runs the service"
)


@dataclass(frozen=True, slots=True)
class Roots:
    """Attributes:
    optional: members of ``paths`` that may be absent, like the usual places.
    limit: seconds; a folder that takes longer counts as hanging.
    account: the user that must be able to read them; None is the current user.
    """

    paths: Sequence[Path]
    optional: Collection[Path]
    limit: float
    platform: str
    home: Path
    account: Account | None = None


def check_roots(roots: Roots) -> list[Finding]:
    """Check each folder with models, and whether there are any models."""
    scans = [(path, _scan_within(path, roots.limit)) for path in roots.paths]
    findings = [_root(path, scan, roots) for path, scan in scans]
    if not any(scan.models for _, scan in scans if scan is not None):
        where = f"put one into {roots.paths[0]}" if roots.paths else "set models.dirs"
        findings.append(warn("models", "there is no model to serve", where))
    return findings


def _scan_within(path: Path, limit: float) -> RootScan | None:
    found: list[RootScan] = []
    # A thread that hangs in a read from a volume cannot be ended. It must not delay the exit.
    scan = threading.Thread(
        target=lambda: found.append(scan_root(str(path), HeaderCache())), daemon=True
    )
    scan.start()
    scan.join(limit)
    return found[0] if found else None


def _root(path: Path, scan: RootScan | None, roots: Roots) -> Finding:
    name = "models"
    if scan is None:
        return fail(name, f"{path}: the folder does not answer", "check the volume it is on")
    status = scan.status
    match status.state:
        case RootState.OK:
            pass
        case RootState.ABSENT if path in roots.optional:
            return ok(name, f"{path}: not there, and not needed")
        case RootState.ABSENT:
            return warn(name, f"{path}: not there", "create it, or set models.dirs")
        case RootState.DENIED if roots.platform == "darwin":
            return fail(name, f"{path}: access is denied", PRIVACY)
        case _:
            return fail(name, f"{path}: {status.detail or status.state.value}")
    text = f"{path}: {len(scan.models)} models"
    if roots.account is not None and access.blocked(path, roots.account, READABLE):
        return fail(name, f"{text}, which {roots.account.name} cannot read", "let it, or move them")
    if scan.broken:
        first = scan.broken[0]
        more = f", and {len(scan.broken) - 1} more" if len(scan.broken) > 1 else ""
        return warn(
            name,
            f"{text}; {first.id} is broken ({first.file}: {first.reason}){more}",
            "download it again, or remove it",
        )
    if roots.platform == "darwin" and _is_asked_for(path, roots.home):
        return warn(name, f"{text}; readable here, and macOS asks anew for the service", PRIVACY)
    return ok(name, text)


def _is_asked_for(path: Path, home: Path) -> bool:
    folders = [Path("/Volumes"), *(home / name for name in ASKED_FOR)]
    return any(path.is_relative_to(folder) for folder in folders)


def check_private(paths: Paths) -> list[Finding]:
    """Check the files that only their owner may read. An absent file is fine."""
    mistakes = [*_open_folder(paths.state), *_open_folder(paths.logs)]
    for folder in (paths.state, paths.logs):
        mistakes += [finding for path in _files(folder) for finding in _readable(path)]
    mistakes += _writable(paths.config_file)
    return mistakes or [ok("permissions", "state, logs and configuration are private")]


def check_usable(paths: Paths) -> list[Finding]:
    """The reasons why the daemon, as the current user, cannot use its own files."""
    found = []
    for folder in (paths.state, paths.logs):
        near = _nearest(folder)
        if not _is_usable(near):
            found.append(_unusable("access", folder, near))
        foreign = next((path for path in _files(folder) if not _is_ours(path)), None)
        if foreign is not None:
            text = f"{foreign}: belongs to another user, and cannot be written"
            remedy = f"sudo chown -R {os.geteuid()} '{folder}'"
            found.append(fail("access", text, remedy))
    return found


def _is_usable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _unusable(name: str, folder: Path, near: Path) -> Finding:
    remedy = f"{near} must be a folder that you may write in: check its owner and mode"
    return fail(name, f"{folder}: cannot be written", remedy)


def _is_ours(file: Path) -> bool:
    try:
        return os.access(file, os.R_OK | os.W_OK) or file.stat().st_uid == os.geteuid()
    except FileNotFoundError:  # a running daemon has just renamed it
        return True


def _nearest(folder: Path) -> Path:
    """``folder``, or the nearest folder above it that exists."""
    # Path.exists raises when this user may not enter a parent folder.
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))


def check_account(job: JobSpec) -> list[Finding]:
    """The reasons why the account of a system daemon cannot use its own files."""
    return [fail("account", text) for text in access.problems(job)]


def check_keys(paths: Paths, account: Account | None = None) -> Finding:
    """``account``: the required owner of the file; None is the current user."""
    try:
        keys = read_keys(path_in(paths.state), owner=None if account is None else account.uid)
    except ConfigError as error:
        return fail("keys", "; ".join(error.mistakes))
    if not keys:
        return ok("keys", "none: every program on this machine may use the server")
    return ok("keys", ", ".join(f"{key.name} ({key.scope.value})" for key in keys))


def check_cache(folder: Path, account: Account | None = None) -> Finding:
    """Whether the folder is writable and its disk has room. Only the disk limits the cache."""
    near = _nearest(folder)
    if account is None:
        usable = _is_usable(near)
    else:
        usable = access.blocked(near, account, access.WRITE | access.ENTER) is None
    if not usable:
        return _unusable("cache", folder, near)
    free = shutil.disk_usage(near).free
    text = f"{folder}: holds {format_bytes(_held(folder))}, no quota; {format_bytes(free)} free"
    if free < LITTLE_ROOM:
        return warn("cache", text, "free some space on this disk")
    return ok("cache", text)


def _held(folder: Path) -> int:
    """The total bytes of the files below ``folder`` that this user can see."""
    size = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(root, name)).st_size
    return size


def _files(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return


def _open_folder(folder: Path) -> list[Finding]:
    mode = _mode(folder)
    if mode is None or not mode & 0o022:
        return []
    text = f"{folder}: others may write there (mode {mode:04o})"
    return [fail("permissions", text, f"chmod 700 '{folder}'")]


def _readable(path: Path) -> list[Finding]:
    mode = _mode(path)
    if mode is None or not mode & 0o077:
        return []
    text = f"{path}: others may read it (mode {mode:04o})"
    return [warn("permissions", text, f"chmod 600 '{path}'")]


def _writable(path: Path) -> list[Finding]:
    mode = _mode(path)
    if mode is None or not mode & 0o022:
        return []
    text = f"{path}: others may change it (mode {mode:04o})"
    return [fail("permissions", text, f"chmod 600 '{path}'")]


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None
