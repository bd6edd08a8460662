"""T69: the real child process of the sleep inhibitor, with a stand-in for caffeinate."""

import os
import time
from collections.abc import Sequence
from typing import Any

import pytest

from omlxd.host.sleep_inhibitor import Child, SleepInhibitor, spawn_quietly


def test_a_real_child_lives_while_work_is_under_way_and_is_reaped() -> None:
    spawned: list[Child] = []

    def spawn(command: Sequence[str]) -> Child:
        assert command[-1] == str(os.getpid())
        child = spawn_quietly(["/bin/sleep", "60"])
        spawned.append(child)
        return child

    working = True
    inhibitor = SleepInhibitor(lambda: working, spawn, os.getpid())
    inhibitor.update()
    assert inhibitor.holding
    working = False
    inhibitor.update()
    limit = time.monotonic() + 60.0
    while spawned[0].poll() is None:
        assert time.monotonic() < limit, "did not end within 60 s"
        time.sleep(0.02)
    working = True
    inhibitor.update()
    inhibitor.close()
    assert [child.poll() for child in spawned] == [-15, -15]


def test_the_child_is_spawned_and_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork would copy the page tables of the process that holds the models."""
    spawned: list[object] = []

    def posix_spawn(*arguments: Any, **options: Any) -> int:
        spawned.append(arguments[0])
        return real(*arguments, **options)

    real = os.posix_spawn
    monkeypatch.setattr(os, "posix_spawn", posix_spawn)
    child = spawn_quietly(["/bin/sleep", "60"])
    child.terminate()
    child.wait(60)
    assert spawned == ["/bin/sleep"]


def test_a_missing_caffeinate_is_no_error() -> None:
    inhibitor = SleepInhibitor(lambda: True, spawn_quietly, os.getpid())
    # On a Mac this is the real one; elsewhere it is missing.
    inhibitor.update()
    inhibitor.close()
    assert not inhibitor.holding
