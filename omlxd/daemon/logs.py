"""Sets structlog up once: one event a line, JSON or for people."""

import logging
import sys
from typing import Any, TextIO

import structlog

from omlxd.config.options import LogFormat, LogOptions


def configure(options: LogOptions, stream: TextIO | None = None) -> None:
    """Route structlog and the standard library's loggers to ``stream`` (default stderr)."""
    out = sys.stderr if stream is None else stream
    people = options.format is LogFormat.CONSOLE or (
        options.format is LogFormat.AUTO and out.isatty()
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: Any = (
        structlog.dev.ConsoleRenderer(
            colors=out.isatty(),
            # The default one shows local variables, and prompts are among them.
            exception_formatter=structlog.dev.plain_traceback,
        )
        if people
        else structlog.processors.JSONRenderer()
    )
    threshold = getattr(logging, options.level.name)
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, render]
        if not people
        else [*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=True,
    )
    bridge = logging.StreamHandler(out)
    bridge.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers = [bridge]
    # Libraries tell people nothing at INFO that our own events do not.
    root.setLevel(max(threshold, logging.WARNING))
