"""The daemon's port and Unix socket, and the key of local commands.

Other machines may reach the daemon only with an API key. Only its own user can open the Unix
socket.
"""

import errno
import fcntl
import ipaddress
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from omlxd.api.key_file import LOCAL_FILE, Scope, StoredKey, digest, new_key, path_in, read_keys
from omlxd.config.load import Config
from omlxd.config.options import check_socket
from omlxd.daemon.process import raise_file_limit
from omlxd.errors import ConfigError, PortTaken

log = structlog.get_logger(__name__)

SOCKET_BACKLOG = 128
CONNECT_LIMIT = 1.0
"""Seconds to find out whether another process listens on the Unix socket."""


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
        """Remove the file, unless another file has replaced it. It may be called twice."""
        try:
            if _identity(self.path) == self.file:
                self.path.unlink()
        except OSError:
            return


@dataclass(frozen=True, slots=True)
class Listeners:
    """Attributes:
    keys: the file of API keys.
    local_key: the key of this run for local commands; None when its file could not be written.
    """

    tcp: socket.socket
    local: LocalSocket | None
    keys: Path
    local_key: StoredKey | None

    @property
    def sockets(self) -> Sequence[socket.socket]:
        return [self.tcp] if self.local is None else [self.tcp, self.local.listener]

    @property
    def on_loopback(self) -> bool:
        return is_loopback(self.tcp.getsockname()[0])

    def remove_files(self) -> None:
        """Remove the local key and the Unix socket. It may be called twice."""
        self.keys.with_name(LOCAL_FILE).unlink(missing_ok=True)
        if self.local is not None:
            self.local.remove()


def open_listeners(config: Config, tcp: socket.socket) -> Listeners:
    """Open the other listeners. ``tcp`` listens already, and is closed on failure.

    Raises ConfigError, also when other machines could reach the daemon without a key.
    """
    raise_file_limit(config.server.max_connections)
    keys = path_in(config.paths.state)
    try:
        any_key = bool(read_keys(keys))
        host = tcp.getsockname()[0]
        if not any_key and not is_loopback(host):
            raise ConfigError(
                [
                    f"server.host: {config.server.host} lets other machines in, and there is no "
                    "API key: make one first (omlxd key add NAME), or listen on 127.0.0.1"
                ]
            )
        local = None if config.server.socket is None else open_local_socket(config.server.socket)
    except BaseException:
        tcp.close()
        raise
    return Listeners(tcp, local, keys, write_local_key(config.paths.state))


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def write_local_key(state: Path) -> StoredKey | None:
    """A fresh key for this run, in a file that only its owner can read.

    None when the file cannot be written: the daemon runs without it."""
    key = new_key()
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{LOCAL_FILE}.", suffix=".tmp", dir=state)
        with os.fdopen(handle, "w") as file:
            file.write(key + "\n")
        os.replace(name, state / LOCAL_FILE)
    except OSError as error:
        log.warning("local_key_not_written", folder=str(state), error=str(error))
        return None
    return StoredKey("this machine", Scope.ALL, digest(key), time.time())


def open_local_socket(name: str) -> LocalSocket:
    """Listen on the socket ``name``. The socket that a killed daemon left there is replaced.

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
    """Raise the errors of ``open_local_socket`` for the user ``uid``; change no file."""
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
    """Lock the folder, which must be private. Two daemons that start at the same time must not
    replace each other's socket."""
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
        probe.settimeout(CONNECT_LIMIT)
        try:
            probe.connect(str(path))
        except OSError as error:
            # Any other error than "connection refused" may come from a busy owner.
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True


def _bind(path: Path) -> LocalSocket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        os.chmod(path, 0o600)
        listener.listen(SOCKET_BACKLOG)
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
