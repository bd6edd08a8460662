"""T69: the machine sleeps longer than any limit, whatever is going on: nothing is over at wake."""

import asyncio

import pytest

from omlxd.pool.options import PoolOptions
from tests.integration.guard.machines import loaded, played, until
from tests.support.guard_invariants import Watch
from tests.support.simulated_daemon import SimulatedDaemon
from tests.support.simulated_mac import CRITICAL

NIGHT = 10 * 3600.0


@pytest.mark.parametrize("timeout", [40.0, 60.0, 600.0])
def test_idle_models_are_not_unloaded_at_wake_but_when_their_time_awake_is_over(
    timeout: float,
) -> None:
    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "small", "other", "middle")
        await asyncio.sleep(timeout / 3)
        daemon.sleep_machine(NIGHT)
        daemon.enforcer.wake()
        await daemon.ticks(1)
        assert daemon.in_memory() == ["small", "other", "middle"]
        await until(lambda: daemon.in_memory() == [], timeout)
        assert watch.notable_actions == []

    played(scene, pool_options=PoolOptions(scan_every=None, idle_timeout=timeout))


def test_requests_in_line_for_memory_keep_the_rest_of_their_time() -> None:
    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "big")
        running = asyncio.create_task(daemon.ask("big", tokens=600))
        await asyncio.sleep(2)
        lines = [asyncio.create_task(daemon.ask("huge", deadline=300)) for _ in range(5)]
        await asyncio.sleep(2)
        assert daemon.state("huge") == "queued"
        daemon.sleep_machine(NIGHT)
        assert await running == "finished"
        assert {await waiting for waiting in lines} == {"finished"}

    played(scene, size=64, pool_options=PoolOptions(scan_every=None, drain_after=1000.0))


def test_requests_that_pressure_holds_back_keep_the_rest_of_their_time() -> None:
    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "small")
        running = asyncio.create_task(daemon.ask("small", tokens=400))
        await asyncio.sleep(3)
        daemon.mac.forced_pressure = CRITICAL
        await until(lambda: daemon.decision.memory.paused, 11)
        waiting = asyncio.create_task(daemon.ask("small"))
        await asyncio.sleep(2)
        daemon.sleep_machine(NIGHT)
        await daemon.ticks(2)
        assert not waiting.done()
        daemon.mac.forced_pressure = None
        assert await running == "finished"
        assert await waiting == "finished"

    played(scene)


def test_a_load_goes_on_beside_requests_after_a_night_between_two_pieces() -> None:
    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "small")
        running = asyncio.create_task(daemon.ask("small", tokens=4000))
        await asyncio.sleep(3)
        load = asyncio.create_task(daemon.ask("big", tokens=5))
        await asyncio.sleep(1)
        assert daemon.state("big") == "loading"
        daemon.sleep_machine(NIGHT)
        await until(lambda: daemon.state("big") == "ready", 60)
        assert await load == "finished"
        assert not running.done()
        assert await running == "finished"

    played(scene)


def test_an_unload_that_waits_for_a_stream_does_not_cut_it_at_wake() -> None:
    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "small")
        running = asyncio.create_task(daemon.ask("small", tokens=400))
        await asyncio.sleep(2)
        unload = asyncio.create_task(daemon.pool.unload("small"))
        await asyncio.sleep(1)
        daemon.sleep_machine(NIGHT)
        assert await running == "finished"
        await unload
        assert daemon.in_memory() == []

    played(scene, pool_options=PoolOptions(scan_every=None, drain_deadline=1000.0))


def test_the_first_look_after_waking_is_at_numbers_of_now() -> None:
    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "small")
        await daemon.ticks(3)
        daemon.sleep_machine(NIGHT)
        woken = daemon.clock()
        assert await daemon.ask("big") == "finished", "judged by a look made after waking"
        assert daemon.decision.memory.reading.taken_at >= woken
        assert daemon.in_memory() == ["small", "big"]

    played(scene)
