"""The connections between the parts of the daemon."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omlxd.config.load import load
from omlxd.daemon import parts
from omlxd.daemon.process import Instance


def built(home: Path) -> parts.Parts:
    listeners: Any = SimpleNamespace(
        keys=home / "keys.json", local_key=None, sockets=[], on_loopback=True
    )
    config = load({}, {}, home=str(home))
    instance = Instance("one", "127.0.0.1", 8484, since=0.0)
    return parts.build(config, listeners, instance, on_death=lambda part, error: None)


def test_the_uptime_counts_from_the_moment_at_which_the_port_listened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "continuous_clock", lambda: 7.5)
    made = parts._identity(Instance("one", "127.0.0.1", 8484, since=5.0))
    assert made.uptime == 2.5


def test_what_waits_and_idles_goes_by_a_clock_that_stands_still_in_sleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T69: a night of sleep makes no model idle and lets no deadline pass."""
    monkeypatch.setattr(parts, "awake_clock", lambda: 5.0)
    monkeypatch.setattr(parts, "continuous_clock", lambda: 5.0 + 8 * 3600)
    made = built(tmp_path)
    assert made.pool._ports.clock() == 5.0
    assert made.engine._clock() == 5.0
    assert made.engine.requests._clock() == 5.0


async def test_the_device_learns_how_many_requests_are_on_their_way(tmp_path: Path) -> None:
    made = built(tmp_path)
    with made.engine.requests.running("a"):
        assert made.engine._inbox.coming == 1
    assert made.engine._inbox.coming == 0
