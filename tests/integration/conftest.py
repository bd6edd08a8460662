"""Daemon processes of a test's own."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import DaemonProcess, link_models

MakeDaemon = Callable[..., DaemonProcess]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A private folder whose path leaves room for a socket's name: on macOS that of ``tmp_path``
    alone is longer than the 103 bytes that a socket may have."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[MakeDaemon]:
    """Start daemons of a test's own, each under a home below ``tmp_path``; all end with it."""
    with ExitStack() as stack:

        def make(*arguments: str, models: tuple[Path, ...] = (), **options: Any) -> DaemonProcess:
            home = options.pop("home", tmp_path / "home")
            link_models(home, *models)
            return stack.enter_context(DaemonProcess(home, *arguments, **options))

        yield make
