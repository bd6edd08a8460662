"""Fixtures that more than one package of tests uses."""

import gc
import os
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
# Fresh examples in every run, and many of them; a failure prints how to run its example again.
settings.register_profile(
    "nightly",
    max_examples=600,
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "omlxd"))

# structlog's own choice draws each traceback with all its variables, which takes a second.
structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback

# A shell starts background jobs with SIGINT ignored, and whatever the tests start inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)

_LEFT_OUT = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mac", action="store_true", help="also run the tests that need a real Mac")
    parser.addoption(
        "--deep",
        action="store_true",
        help="also run the deep tests, and give Hypothesis many more examples, with fresh seeds",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--deep"):
        settings.load_profile("nightly")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the ``mac`` and the ``deep`` tests unless they were asked for. Where ``mac`` tests
    cannot run although they were asked for, skip them visibly."""
    left_out = {}
    for marker in ("mac", "deep"):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not config.getoption(f"--{marker}"):
            left_out[marker] = len(marked)
            items[:] = [item for item in items if item not in marked]
            config.hook.pytest_deselected(items=marked)
        elif marker == "mac" and sys.platform != "darwin":
            for item in marked:
                item.add_marker(pytest.mark.skip(f"needs a real Mac; this is {sys.platform}"))
    config.stash[_LEFT_OUT] = left_out


def pytest_collection_finish() -> None:
    """Or each engine that stops looks for garbage in all the tests there are."""
    gc.freeze()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for marker, number in config.stash.get(_LEFT_OUT, {}).items():
        terminalreporter.write_line(f"{number} {marker} tests: left out without --{marker}")
