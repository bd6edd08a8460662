"""Options of the process itself: where it listens, how it stops, how it logs."""

from dataclasses import dataclass
from enum import Enum

from omlxd.options import Seconds, option


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(Enum):
    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(
        8484, "Port to listen on; 0 takes a free one (see the instance file).", low=0, high=65535
    )
    socket: str | None = option(
        None,
        "Unix socket to listen on as well, in a folder that only you may enter; at most 103 bytes "
        "long. Whoever can open it needs no API key.",
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
