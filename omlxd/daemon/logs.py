"""Sets structlog up once: one event per line, as JSON or for people."""

import contextlib
import io
import logging
import sys
from typing import Any, TextIO, cast

import structlog

from omlxd.config.options import LogFormat, LogOptions


class _Unfailing(io.TextIOBase):
    """A stream whose writes never fail: a closed terminal or pipe loses only the log."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure(options: LogOptions, stream: TextIO | None = None) -> None:
    """Send structlog and the standard library's loggers to ``stream``, whose writes must not fail
    on a full disk. The default is stderr; its failures are ignored."""
    out = cast(TextIO, _Unfailing(sys.stderr)) if stream is None else stream
    people = options.format is LogFormat.CONSOLE or (
        options.format is LogFormat.AUTO and out.isatty()
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[Any] = (
        [
            structlog.dev.ConsoleRenderer(
                colors=out.isatty(),
                # The default formatter shows local variables, such as prompts.
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
        if people
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    threshold = getattr(logging, options.level.name)
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=True,
    )
    bridge = logging.StreamHandler(out)
    bridge.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers = [bridge]
    # INFO messages of libraries repeat our own events.
    root.setLevel(max(threshold, logging.WARNING))
