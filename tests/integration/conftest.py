"""Daemon processes of a test's own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import DaemonProcess, link_models

MakeDaemon = Callable[..., DaemonProcess]


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[MakeDaemon]:
    """Start daemons of a test's own, each under a home below ``tmp_path``; all end with it."""
    with ExitStack() as stack:

        def make(*arguments: str, models: tuple[Path, ...] = (), **options: Any) -> DaemonProcess:
            home = options.pop("home", tmp_path / "home")
            link_models(home, *models)
            return stack.enter_context(DaemonProcess(home, *arguments, **options))

        yield make
