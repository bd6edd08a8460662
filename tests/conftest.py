"""Fixtures that more than one package of tests uses."""

import gc
import signal
import sys
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.real_model import real_model


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct, float32: a real model that answers sensibly."""
    return real_model()


# The same examples in every run, and no failure for the time they take on a busy machine.
settings.register_profile(
    "omlxd",
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("omlxd")

# structlog's own choice draws each traceback with all its variables, which takes a second.
structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback

# A shell starts background jobs with SIGINT ignored, and whatever the tests start inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)

_LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mac", action="store_true", help="also run the tests that need a real Mac")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the ``mac`` tests out unless asked for; asked for elsewhere, skip them visibly."""
    mac = [item for item in items if item.get_closest_marker("mac")]
    if not config.getoption("--mac"):
        config.stash[_LEFT_OUT] = len(mac)
        if mac:
            items[:] = [item for item in items if item not in mac]
            config.hook.pytest_deselected(items=mac)
    elif sys.platform != "darwin":
        for item in mac:
            item.add_marker(pytest.mark.skip(reason=f"needs a real Mac; this is {sys.platform}"))


def pytest_collection_finish() -> None:
    """Or each engine that stops looks for garbage in all the tests there are."""
    gc.freeze()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if left_out := config.stash.get(_LEFT_OUT, 0):
        terminalreporter.write_line(f"{left_out} tests need a real Mac: left out without --mac")
