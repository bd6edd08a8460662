"""A daemon under attack, without keys."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import DaemonProcess, link_models
from tests.support.tiny_models import tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"), "llama")


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[DaemonProcess]:
    """One daemon for all attacks; it must survive them and stop cleanly."""
    home = tmp_path_factory.mktemp("daemon")
    link_models(home, tiny)
    with DaemonProcess(home, "--log-level", "debug") as running:
        yield running
        assert running.stop() == 0
        assert not running.events("request_failed"), running.tail()
