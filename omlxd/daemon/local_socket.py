"""The Unix socket beside the port: only the daemon's own user can open it."""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from omlxd.config.options import check_socket
from omlxd.errors import ConfigError, PortTaken

BACKLOG = 128
CONNECT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LocalSocket:
    """Attributes:
    listener: accepts connections.
    file: device and inode of the file we made at ``path``.
    """

    path: Path
    listener: socket.socket
    file: tuple[int, int]

    def remove(self) -> None:
        """Take the file away, unless another one lies there by now; twice is fine."""
        try:
            if _identity(self.path) == self.file:
                self.path.unlink()
        except OSError:
            return


def open_local_socket(name: str) -> LocalSocket:
    """Listen on the socket ``name``; what a killed daemon left there is replaced.

    Raises ConfigError for a path that cannot be used, PortTaken when another process listens.
    """
    path = _short_path(name)
    try:
        with _folder_held(path):
            if _is_in_the_way(path):
                path.unlink(missing_ok=True)
            return _bind(path)
    except OSError as error:
        raise _wrong(path, f"{error.strerror or error}") from None


def check_local_socket(name: str, uid: int) -> None:
    """Raise what ``open_local_socket`` would for the user ``uid``; nothing is made or removed."""
    path = _short_path(name)
    try:
        near = next(folder for folder in path.parents if os.path.exists(folder))
        if near == path.parent:
            _check_folder(path, near.stat(), uid)
        if uid == os.geteuid() and not os.access(near, os.W_OK | os.X_OK):
            raise _wrong(path, f"{near} cannot be written; check its owner and mode")
        _is_in_the_way(path)
    except OSError as error:
        raise _wrong(path, f"{error.strerror or error}") from None


def _short_path(name: str) -> Path:
    try:
        path = Path(name).expanduser().absolute()
        check_socket(str(path))
    except (RuntimeError, ValueError) as error:
        raise _wrong(Path(name), f"{error}") from None
    return path


@contextmanager
def _folder_held(path: Path) -> Iterator[None]:
    """The folder, private and locked: two daemons that start must not replace each other's."""
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_folder(path, os.fstat(descriptor), os.geteuid())
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _check_folder(path: Path, found: os.stat_result, uid: int) -> None:
    if found.st_uid != uid:
        raise _wrong(path, f"its folder belongs to uid {found.st_uid}; use one of your own")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise _wrong(
            path,
            f"other users may enter its folder (mode {mode:04o}): chmod 700 '{path.parent}', or "
            "use a folder of its own",
        )


def _is_in_the_way(path: Path) -> bool:
    """Whether a killed daemon's socket lies there. Raises for anything that must stay."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise _wrong(path, "something else than a socket lies there; remove it")
    if _is_live(path):
        raise PortTaken(
            f"Another process listens on the socket {path}. Stop it, or choose another path "
            "(server.socket).",
            socket=str(path),
        )
    return True


def _is_live(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_SECONDS)
        try:
            probe.connect(str(path))
        except OSError as error:
            # Anything but a plain "nobody listens" may be a busy owner.
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True


def _bind(path: Path) -> LocalSocket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return LocalSocket(path, listener, _identity(path))
    except OSError:
        listener.close()
        raise


def _identity(path: Path) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _wrong(path: Path, why: str) -> ConfigError:
    return ConfigError([f"server.socket: {path}: {why}"])
