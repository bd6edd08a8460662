"""The signals that stop the daemon."""

import signal
import sys
from collections.abc import Iterator

import pytest

from omlxd.daemon.signals import stop_signals


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_stops_the_daemon_unless_nohup_keeps_it() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT}


def test_a_hangup_does_not_end_a_service_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    monkeypatch.setattr(sys, "argv", ["omlxd", "serve", "--supervised"])
    assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT}
