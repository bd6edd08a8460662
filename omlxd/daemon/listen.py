"""Binds the port before anything heavy is imported, and tells who holds a taken one."""

import errno
import socket

from omlxd.errors import ConfigError, PortTaken

BACKLOG = 512


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises PortTaken naming the holder, ConfigError for a bad address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError([f"server.host: {host!r} is not an address: {error}"]) from None
    # With its protocol named: asyncio sets TCP_NODELAY only on connections that say they are TCP,
    # and without it each answer waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # A port in TIME_WAIT after our own restart is free to take again.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"Port {port} on {host} is taken by {holder(host, port)}. "
                "Stop that process, or choose another port with --port.",
                host=host,
                port=port,
            ) from None
        if error.errno in (errno.EADDRNOTAVAIL, errno.EACCES):
            raise ConfigError([f"server.host, server.port: {host}:{port}: {error}"]) from None
        raise
    listener.setblocking(False)
    return listener


def holder(host: str, port: int) -> str:
    """Who listens on ``port``, as far as the system tells an ordinary user."""
    running = _omlxd_instance(host, port)
    if running is not None:
        return f"another omlxd (instance {running})"
    return _process(port) or "another process (this user may not see which)"


def _omlxd_instance(host: str, port: int) -> str | None:
    import http.client
    import json

    connection = http.client.HTTPConnection(host, port, timeout=1.0)
    try:
        connection.request("GET", "/health")
        answer = json.loads(connection.getresponse().read(65536))
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    instance = answer.get("instance_id") if isinstance(answer, dict) else None
    return instance if isinstance(instance, str) and "version" in answer else None


def _process(port: int) -> str | None:
    import psutil

    for process in psutil.process_iter():
        try:
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return f"{process.name()} (pid {process.pid})"
        except (psutil.Error, OSError):
            continue
    return None
