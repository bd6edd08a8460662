"""The line for memory: order, and who need not stand in it."""

from omlxd.errors import ModelTooLarge
from tests.unit.pool.fakes import FakeMachine, House, MiB, a_model, settle


async def test_what_can_never_fit_is_refused_at_once_also_behind_one_that_waits() -> None:
    house = House(
        a_model("a", size=100 * MiB),
        a_model("b", size=100 * MiB),
        a_model("huge", size=1000 * MiB),
        machine=FakeMachine(160 * MiB),
    )
    current = house.use("a", "1")
    await settle()
    waiting = house.use("b", "2")
    await settle()
    assert waiting.lease is None
    refused = house.use("huge", "3")
    await settle()
    assert isinstance(refused.error, ModelTooLarge)
    await current.done()
    await settle()
    assert waiting.lease is not None
    await waiting.done()


async def test_who_stands_behind_the_first_in_line_is_told_whom_for() -> None:
    house = House(
        a_model("a", size=100 * MiB),
        a_model("b", size=100 * MiB),
        a_model("c", size=100 * MiB),
        machine=FakeMachine(160 * MiB),
    )
    current = house.use("a", "1")
    await house.time.pass_by(6)
    second, third = house.use("b", "2"), house.use("c", "3")
    await settle()
    assert (house.status("b").position, house.status("b").detail) == (1, "waits for a, in use")
    assert (house.status("c").position, house.status("c").detail) == (2, "waits behind b")
    for use in (current, second, third):
        await use.done()
