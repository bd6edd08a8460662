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
