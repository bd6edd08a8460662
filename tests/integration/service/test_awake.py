"""T69: the real child process of the wakefulness, with a stand-in for caffeinate."""

import os
from collections.abc import Callable, Sequence

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


def test_a_missing_caffeinate_is_no_error() -> None:
    awake = Awake(spawn_quietly, os.getpid())
    # On a Mac this is the real one; elsewhere it is missing.
    with awake.working():
        pass
    awake.close()
    assert not awake.holding
