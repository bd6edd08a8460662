"""What the daemon listens on, opened in order, and the rule that a far reach needs a key."""

import ipaddress
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from omlxd.api.key_file import LOCAL_FILE, Scope, StoredKey, digest, new_key, path_in, read_keys
from omlxd.config.load import Config
from omlxd.daemon.file_limit import make_room
from omlxd.daemon.local_socket import LocalSocket, open_local_socket
from omlxd.errors import ConfigError

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Listeners:
    """Attributes:
    local_key: of this run, for local commands; None when its file could not be written.
    """

    tcp: socket.socket
    local: LocalSocket | None
    keys: Path
    local_key: StoredKey | None

    @property
    def listeners(self) -> Sequence[socket.socket]:
        return [self.tcp] if self.local is None else [self.tcp, self.local.listener]

    @property
    def on_loopback(self) -> bool:
        return is_loopback(self.tcp.getsockname()[0])

    def leave(self) -> None:
        """Take away the files that say where to enter; twice is fine."""
        self.keys.with_name(LOCAL_FILE).unlink(missing_ok=True)
        if self.local is not None:
            self.local.remove()


def open_listeners(config: Config, tcp: socket.socket) -> Listeners:
    """The other doors beside ``tcp``, which listens already and is closed when this fails.

    Raises ConfigError: a daemon that others can reach without a key is a mistake.
    """
    make_room(config.server.max_connections)
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
    """A fresh key for this run, in a file of its owner alone; a full disk costs the commands
    that key, and not the daemon."""
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
