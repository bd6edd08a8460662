"""Loads are judged by what the guard sees now, not by what an idle one saw half a minute ago."""

from omlxd.errors import InsufficientMemory
from tests.unit.pool.fakes import FakeMachine, House, MiB, a_model, settle

SIZE = 60 * MiB


def a_house(age: float, others: int = 0) -> tuple[House, FakeMachine]:
    machine = FakeMachine(100 * MiB)
    machine.age, machine.others = age, others
    return House(a_model("a", size=SIZE), machine=machine), machine


async def test_a_load_waits_for_a_look_when_the_last_one_is_old() -> None:
    house, machine = a_house(age=30.0, others=80 * MiB)
    use = house.use("a")
    await settle()
    assert house.woken == 1
    assert house.status("a").detail == "memory is being looked at"
    machine.age, machine.others = 0.0, 0
    house.pool.check_idle()
    await settle()
    assert use.lease is not None
    await use.done()


async def test_memory_that_has_gone_since_the_last_look_refuses_the_load() -> None:
    house, machine = a_house(age=30.0)
    use = house.use("a")
    await settle()
    machine.age, machine.others = 0.0, 80 * MiB
    house.pool.check_idle()
    await settle()
    assert isinstance(use.error, InsufficientMemory)
    assert house.engine.tickets == []


async def test_a_guard_that_cannot_look_holds_no_load_up_for_long() -> None:
    house, _ = a_house(age=30.0)
    use = house.use("a")
    await house.time.pass_by(2.0)
    assert use.lease is None
    await house.time.pass_by(2.0)
    assert use.lease is not None
    await use.done()
