"""T69: the Mac is kept from sleeping while work is under way, and only then."""

import subprocess
from collections.abc import Sequence

import pytest

from omlxd.service.awake import Awake, open_awake


class FakeChild:
    def __init__(self, stubborn: bool = False) -> None:
        self.code: int | None = None
        self.stubborn = stubborn
        self.done: list[str] = []

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.done.append("terminate")
        if not self.stubborn:
            self.code = -15

    def kill(self) -> None:
        self.done.append("kill")
        self.code = -9

    def wait(self, timeout: float | None = None) -> int:
        if self.code is None:
            raise subprocess.TimeoutExpired("caffeinate", timeout or 0)
        return self.code


class Spawner:
    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.children: list[FakeChild] = []
        self.fails = False
        self.stubborn = False

    def __call__(self, command: Sequence[str]) -> FakeChild:
        if self.fails:
            raise FileNotFoundError(command[0])
        self.commands.append(tuple(command))
        self.children.append(FakeChild(self.stubborn))
        return self.children[-1]


def test_it_starts_with_the_first_and_ends_with_the_last() -> None:
    spawn = Spawner()
    awake = Awake(spawn, pid=42)
    assert not awake.holding
    awake.hold()
    awake.hold()
    awake.release()
    assert awake.holding
    awake.release()
    assert not awake.holding
    assert spawn.commands == [("/usr/bin/caffeinate", "-i", "-w", "42")]
    assert spawn.children[0].done == ["terminate"]


def test_the_next_work_gets_a_new_child() -> None:
    spawn = Spawner()
    awake = Awake(spawn, pid=1)
    for _ in range(3):
        with awake.working():
            assert awake.holding
    assert len(spawn.children) == 3
    assert not awake.holding


def test_work_that_fails_releases_too() -> None:
    awake = Awake(Spawner(), pid=1)
    with pytest.raises(ValueError, match="step"), awake.working():
        raise ValueError("step")
    assert not awake.holding


def test_a_child_that_was_killed_is_replaced_by_the_next_request() -> None:
    spawn = Spawner()
    awake = Awake(spawn, pid=1)
    awake.hold()
    spawn.children[0].code = -9
    awake.hold()
    assert awake.holding
    assert len(spawn.children) == 2


def test_a_machine_without_caffeinate_works_on() -> None:
    spawn = Spawner()
    spawn.fails = True
    awake = Awake(spawn, pid=1)
    with awake.working():
        assert not awake.holding
    spawn.fails = False
    with awake.working():
        assert awake.holding


def test_releasing_too_often_is_our_own_fault_and_said() -> None:
    with pytest.raises(RuntimeError, match="more often"):
        Awake(Spawner(), pid=1).release()


def test_close_ends_a_child_that_takes_no_notice() -> None:
    spawn = Spawner()
    spawn.stubborn = True
    awake = Awake(spawn, pid=1)
    awake.hold()
    awake.close()
    assert spawn.children[0].done == ["terminate", "kill"]
    assert not awake.holding


def test_only_a_mac_needs_it() -> None:
    awake = open_awake(1, platform="linux")
    with awake.working():
        assert not awake.holding
