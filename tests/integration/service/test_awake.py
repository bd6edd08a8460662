"""T69: the real child process of the wakefulness, with a stand-in for caffeinate."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from omlxd.service.awake import Awake, Child, spawn_quietly

Until = Callable[[Callable[[], bool]], None]


def test_a_real_child_lives_while_work_is_under_way_and_is_reaped(until: Until) -> None:
    spawned: list[Child] = []

    def spawn(command: Sequence[str]) -> Child:
        assert command[-1] == str(os.getpid())
        child = spawn_quietly(["/bin/sleep", "60"])
        spawned.append(child)
        return child

    awake = Awake(spawn, os.getpid())
    with awake.working():
        assert awake.holding
    until(lambda: spawned[0].poll() is not None)
    awake.hold()
    awake.close()
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
    awake = Awake(spawn_quietly, os.getpid())
    # On a Mac this is the real one; elsewhere it is missing.
    with awake.working():
        pass
    awake.close()
    assert not awake.holding
