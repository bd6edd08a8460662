"""Options of the process itself: its addresses, its stop and its log."""

import os
import re
import socket
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from omlxd.options import FilePath, Seconds, option


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(Enum):
    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


LONGEST_SOCKET = 103
"""Bytes of a socket's path: sun_path of macOS, the shortest of our platforms, less its end mark."""


def check_host(host: str) -> None:
    """Raises ValueError when this can be neither an address nor the name of a host."""
    try:
        if ":" in host:
            socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
        elif not re.fullmatch(rb"[A-Za-z0-9._-]+", host.encode("idna")):
            raise ValueError("unexpected characters")
    except (OSError, ValueError) as error:
        raise ValueError(f"{host!r} is not an address ({error})") from None


def check_socket(name: str) -> None:
    """Raises ValueError for a path that is too long for a socket on one of our platforms."""
    size = len(os.fsencode(Path(name).expanduser()))
    if size > LONGEST_SOCKET:
        raise ValueError(
            f"the path has {size} bytes, at most {LONGEST_SOCKET} work; choose a shorter one"
        )


@dataclass(frozen=True, slots=True)
class ServerOptions:
    host: str = option("127.0.0.1", "Address to listen on.", check=check_host)
    port: int = option(
        8484, "Port to listen on; 0 takes a free one (see the instance file).", low=0, high=65535
    )
    socket: FilePath | None = option(
        None,
        "Unix socket to listen on as well, in a folder that only you may enter; at most 103 bytes "
        "long. Whoever can open it needs no API key.",
        check=check_socket,
    )
    max_connections: int = option(
        512, "Most connections at a time; further ones get 503.", low=8, high=10_000
    )
    head_timeout: Seconds = option(
        20.0, "How long a client may take to send the headers of a request.", low=1
    )
    drain_limit: Seconds = option(
        20.0, "How long running requests may go on after a stop was asked for.", low=0
    )
    stop_limit: Seconds = option(
        5.0, "How long the rest of a stop may take; past it the process leaves at once.", above=0
    )


@dataclass(frozen=True, slots=True)
class LogOptions:
    level: LogLevel = option(LogLevel.INFO, "Least severe level that is written.")
    format: LogFormat = option(
        LogFormat.AUTO, "'console' for people, 'json' one object a line; 'auto' asks the terminal."
    )
