"""What the memory guard asks of the engine."""

import pytest

from omlxd.engine.handle import RequestPhase
from omlxd.errors import MemoryPressure
from omlxd.policy.ceiling import Limits
from tests.support.fake_backend import sequence
from tests.unit.engine.test_handle import Rig


async def test_the_runtimes_facts_are_known_once_it_is_up() -> None:
    rig = Rig()
    assert rig.engine.info is None
    rig.engine.start()
    assert await rig.engine.ready() == rig.engine.info == rig.backend.info
    assert await rig.engine.stop(5)


async def test_what_a_pause_held_until_its_deadline_fails_and_what_runs_goes_on() -> None:
    """Admission of new requests pauses when the level is not ok; running ones go on."""
    rig = Rig()
    rig.engine.start()
    await rig.engine.ready()
    await rig.engine.load("a", "/a").result()
    rig.engine.set_limits(Limits(generation=1, enabled=True, admission_paused=True))
    running = rig.engine.submit("a", sequence("r-1", max_tokens=100_000))
    await anext(running)
    held = rig.engine.submit("a", sequence("r-2"))

    def late(request: object) -> MemoryPressure:
        return MemoryPressure("It waited.")

    assert rig.engine.requests.fail_queued(300.0, late) == 0
    rig.clock.advance(300.0)
    assert rig.engine.requests.fail_queued(300.0, late) == 1
    with pytest.raises(MemoryPressure, match="It waited"):
        await anext(held)
    assert running.phase is not RequestPhase.QUEUED
    assert not running.over
    assert rig.engine.requests.fail_queued(300.0, late) == 0
    assert await rig.engine.stop(5)
