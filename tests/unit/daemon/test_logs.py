"""The daemon's log to a failing stream, and the errors in it."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from omlxd.config.options import LogFormat, LogOptions
from omlxd.daemon.logs import configure


class BrokenStream(io.TextIOBase):
    """Like stderr without a reader, until a test repairs it."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True
        self.written = ""

    def write(self, text: str) -> int:
        if self.broken:
            raise BrokenPipeError(32, "Broken pipe")
        self.written += text
        return len(text)

    def flush(self) -> None:
        if self.broken:
            raise OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, before = root.handlers, root.level, structlog.get_config()
    yield
    root.handlers, root.level = handlers, level
    structlog.configure(**before)


def test_a_log_that_cannot_be_written_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = BrokenStream()
    monkeypatch.setattr("sys.stderr", stream)
    configure(LogOptions())
    structlog.get_logger("omlxd").info("lost")
    logging.getLogger("library").warning("lost too")
    stream.broken = False
    structlog.get_logger("omlxd").info("kept")
    assert "kept" in stream.written
    assert "lost" not in stream.written


@pytest.mark.parametrize("name", ["library", "omlxd"])
@pytest.mark.parametrize("format", [LogFormat.JSON, LogFormat.CONSOLE])
def test_a_traceback_can_be_read_whoever_logs_it(name: str, format: LogFormat) -> None:
    stream = io.StringIO()
    configure(LogOptions(format=format), stream)
    logger = structlog.get_logger() if name == "omlxd" else logging.getLogger(name)
    try:
        raise ValueError("why")
    except ValueError:
        logger.error("failed", exc_info=True)
    text = stream.getvalue()
    if format is LogFormat.JSON:
        text = json.loads(text)["exception"]
    assert "Traceback (most recent call last)" in text
    assert text.count("ValueError: why") == 1
