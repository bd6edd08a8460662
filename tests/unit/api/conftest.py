"""Keeps structlog's default console, which renders tracebacks for seconds, out of these tests."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs


@pytest.fixture(autouse=True)
def _captured_logs() -> Iterator[None]:
    with capture_logs():
        yield
