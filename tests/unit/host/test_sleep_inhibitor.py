"""T69: the Mac is kept awake while work is running, and only then."""

import subprocess
from collections.abc import Sequence

from omlxd.host.sleep_inhibitor import SleepInhibitor, open_sleep_inhibitor


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


class Work:
    """The running work; the inhibitor is updated at each change."""

    def __init__(self, spawn: Spawner | None, pid: int = 1) -> None:
        self.inhibitor = SleepInhibitor(lambda: self.count > 0, spawn, pid)
        self.count = 0

    def becomes(self, count: int) -> bool:
        """Whether the machine is kept awake now."""
        self.count = count
        self.inhibitor.update()
        return self.inhibitor.holding


def test_it_starts_with_the_first_and_ends_with_the_last() -> None:
    spawn = Spawner()
    work = Work(spawn, pid=42)
    assert [work.becomes(count) for count in (0, 1, 3, 1)] == [False, True, True, True]
    assert spawn.commands == [("/usr/bin/caffeinate", "-i", "-w", "42")]
    assert spawn.children[0].done == []
    assert not work.becomes(0)
    assert not work.becomes(0)
    assert len(spawn.children) == 1
    assert spawn.children[0].done == ["terminate"]


def test_the_next_work_gets_a_new_child() -> None:
    spawn = Spawner()
    work = Work(spawn)
    for _ in range(3):
        assert work.becomes(1)
        assert not work.becomes(0)
    assert len(spawn.children) == 3


def test_a_child_that_was_killed_is_replaced_by_the_next_request() -> None:
    spawn = Spawner()
    work = Work(spawn)
    work.becomes(1)
    spawn.children[0].code = -9
    assert work.becomes(2)
    assert len(spawn.children) == 2


def test_a_machine_without_caffeinate_works_on() -> None:
    spawn = Spawner()
    spawn.fails = True
    work = Work(spawn)
    assert not work.becomes(1)
    work.becomes(0)
    spawn.fails = False
    assert work.becomes(1)


def test_close_ends_a_child_that_takes_no_notice() -> None:
    spawn = Spawner()
    spawn.stubborn = True
    work = Work(spawn)
    work.becomes(1)
    work.inhibitor.close()
    assert spawn.children[0].done == ["terminate", "kill"]
    assert not work.inhibitor.holding


def test_only_a_mac_needs_it() -> None:
    inhibitor = open_sleep_inhibitor(lambda: 1 / 0 > 0, platform="linux")
    inhibitor.update()
    assert not inhibitor.holding
