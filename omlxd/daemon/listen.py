"""Binds the port before anything heavy is imported. Finds the process that holds a taken port."""

import errno
import os
import socket
from typing import Any

from omlxd.errors import ConfigError, PortTaken

BACKLOG = 512
PROBE = 0.1
"""Seconds to connect within this machine. A closed port refuses at once."""
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""The machine lacks a resource now; a later start may succeed."""


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises PortTaken naming the holder, ConfigError for a bad address."""
    try:
        listener = bound(host, port)
    except (socket.gaierror, ValueError) as error:
        raise ConfigError([f"server.host: {host!r} is not an address: {error}"]) from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"Port {port} on {host} is taken by {holder(host, port)}. "
                "Stop that process, or choose another port with --port.",
                host=host,
                port=port,
            ) from None
        if error.errno in _PASSING:
            raise
        raise ConfigError([f"server.host, server.port: {host}:{port}: {error}"]) from None
    listener.setblocking(False)
    return listener


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises OSError, and ValueError for what is no host name."""
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    if port and _answers(family, address):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    # Name the protocol: asyncio sets TCP_NODELAY only if the socket says that it is TCP. Without
    # TCP_NODELAY each answer waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # After our own restart the port may be in TIME_WAIT; it can be bound again.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _answers(family: int, address: tuple[Any, ...]) -> bool:
    """Whether a process listens there already. With SO_REUSEADDR, macOS lets a process bind one
    address while another process has bound all addresses, and the other way round."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE)
        try:
            probe.connect(address)
            # The system may have given this socket the same port; then it has reached itself.
            return bool(probe.getsockname() != probe.getpeername())
        except OSError:
            return False


def holder(host: str, port: int) -> str:
    """The process that listens there, as far as an ordinary user may know."""
    running, process = _omlxd_instance(host, port), _process(host, port)
    if running is None:
        unseen = "another process (this user may not see which)"
        return unseen if process is None else f"{process[0]} (pid {process[1]})"
    pid = "" if process is None else f"pid {process[1]}, "
    return f"another omlxd ({pid}instance {running})"


def _omlxd_instance(host: str, port: int) -> str | None:
    from omlxd.instance import Healthy, ask_health, reachable_url

    health = ask_health(reachable_url(host, port), limit=1.0)
    return health.instance_id if isinstance(health, Healthy) else None


def _process(host: str, port: int) -> tuple[str, int] | None:
    """Name and pid of the process that listens there, or on all addresses."""
    import psutil

    wanted = _addresses(host, port)
    wide = None
    for process in psutil.process_iter():
        try:
            for connection in process.net_connections(kind="tcp"):
                if connection.status != psutil.CONN_LISTEN or connection.laddr.port != port:
                    continue
                if connection.laddr.ip in wanted:
                    return process.name(), process.pid
                if any(_are_one(connection.laddr.ip, address) for address in wanted):
                    wide = process.name(), process.pid
        except (psutil.Error, OSError):
            continue
    return wide


def _addresses(host: str, port: int) -> frozenset[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, ValueError):
        return frozenset({host})
    return frozenset(str(address[0]) for *_, address in found)


def _are_one(one: str, other: str) -> bool:
    """Whether a listener on one address prevents binding the other."""
    for every, single in ((one, other), (other, one)):
        if every == "::" or (every == "0.0.0.0" and ":" not in single):
            return True
    return False
