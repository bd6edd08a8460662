"""The whole core of the daemon on simulated Macs: one trouble at a time, in virtual time."""

import asyncio
from functools import partial

import pytest

from omlxd.policy.actions import EvictModel
from omlxd.policy.pressure import Level
from omlxd.units import GiB
from tests.integration.guard.machines import loaded, played, until
from tests.support.guard_invariants import Watch
from tests.support.simulated_daemon import SimulatedDaemon
from tests.support.simulated_mac import CRITICAL


def looked_again(daemon: SimulatedDaemon, looks: int) -> bool:
    return daemon.kernel.host_calls > looks


@pytest.mark.parametrize("busy", [False, True])
def test_one_odd_sample_of_other_apps_changes_nothing(busy: bool) -> None:
    """One odd sample (another app's spike) never evicts or aborts."""

    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "small", "middle", "big")
        answer = asyncio.create_task(daemon.ask("big", tokens=400))
        if not busy:
            await answer
        await daemon.ticks(4)
        for _ in range(20):
            looks = daemon.kernel.host_calls
            daemon.kernel.spikes = [100 * GiB]
            await until(partial(looked_again, daemon, looks), 40)
            await daemon.ticks(4)
            assert daemon.kernel.spikes == []
            assert daemon.decision.memory.level is Level.OK
        assert await answer == "finished"
        assert watch.notable_actions == []
        assert set(daemon.in_memory()) == {"small", "middle", "big"}

    played(scene)


def test_apps_that_stay_are_made_room_for_by_the_least_recently_used_first() -> None:
    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "middle", "small", "other", "big")
        daemon.mac.apps += 25 * GiB
        await until(lambda: len(daemon.in_memory()) < 4, 40)
        await daemon.ticks(5)
        assert [action.model_id for action in watch.since(0) if isinstance(action, EvictModel)] == [
            "middle"
        ]
        assert daemon.in_memory() == ["small", "other", "big"]
        assert daemon.decision.memory.level is Level.OK

    played(scene)


def test_what_leaves_for_a_load_is_in_the_record_with_what_it_freed() -> None:
    """Evictions for a load's sake are entries too."""

    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "small", "big", "huge")
        assert daemon.in_memory() == ["small", "huge"]
        entries = [e for e in daemon.enforcer.record.entries if e.eviction is not None]
        (entry,) = entries
        eviction = entry.eviction
        assert eviction is not None
        assert eviction.freed is not None
        assert (eviction.model_id, eviction.for_model) == ("big", "huge")
        assert eviction.freed >= daemon.shapes["big"].weights
        assert entry.decision.rule == "room_for_load"
        assert watch.notable_actions == [], "the guard itself had nothing to do"

    played(scene)


def test_a_frozen_reading_refuses_nothing_for_ever() -> None:
    """Counters that stopped in a bad moment stop counting: what fits the machine is served."""

    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        daemon.mac.apps += 90 * GiB
        await daemon.ticks(4)
        assert await daemon.ask("big") == "insufficient_memory"
        daemon.kernel.frozen = True
        daemon.mac.apps -= 90 * GiB
        await asyncio.sleep(10)
        assert await daemon.ask("big") == "finished"
        await asyncio.sleep(3600)
        assert daemon.enforcer.latest is not None
        assert any(
            "same answer" in line
            for line in daemon.enforcer.latest.decision.memory.reading.degraded
        )
        await loaded(daemon, "huge", "small")
        assert watch.notable_actions == []

    played(scene)


@pytest.mark.parametrize("psutil_fails", [False, True])
def test_counters_that_fail_take_nothing_from_anybody(psutil_fails: bool) -> None:
    """A reading that fails degrades: psutil's available memory, then the static ceiling."""

    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "small", "big")
        daemon.kernel.counters_fail, daemon.kernel.psutil_fails = True, psutil_fails
        await daemon.ticks(30)
        await loaded(daemon, "middle")
        daemon.kernel.counters_fail = daemon.kernel.psutil_fails = False
        await daemon.ticks(10)
        assert watch.notable_actions == []
        assert daemon.decision.memory.level is Level.OK

    played(scene)


@pytest.mark.parametrize("busy", [False, True])
def test_a_pool_of_80_gb_is_returned_and_costs_nobody_anything(busy: bool) -> None:
    """Level not ok, no emergency, the pool above 2 GiB: reclaim, nothing destructive happens."""

    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "small", "middle", "big")
        answers = [asyncio.create_task(daemon.ask("big", tokens=200)) for _ in range(4 * busy)]
        await asyncio.sleep(5)
        soft = daemon.decision.memory.ceilings.soft
        assert soft is not None
        daemon.mac.pool += soft + 12 * GiB - daemon.mac.footprint
        assert daemon.mac.pool > 80 * GiB
        await until(lambda: daemon.mac.pool < GiB, 20)
        assert [await answer for answer in answers] == ["finished"] * len(answers)
        await daemon.ticks(5)
        assert watch.notable_actions == []
        assert daemon.decision.memory.level is Level.OK
        assert not daemon.decision.memory.paused

    played(scene, size=512)


def test_a_swollen_pool_keeps_no_model_out() -> None:
    """What the allocator pools is given back before the load, so nothing else has to go."""

    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "small")
        daemon.mac.pool += 60 * GiB
        await daemon.engine.sample()
        assert await daemon.ask("huge") == "finished"
        assert daemon.in_memory() == ["small", "huge"]
        assert daemon.mac.pool < 10 * GiB
        assert watch.notable_actions == []

    played(scene)


@pytest.mark.parametrize("seconds", [30.0, 3600.0, 200_000.0])
def test_the_sleep_of_the_machine_costs_nobody_anything(seconds: float) -> None:
    """Numbers from before the sleep are old; nothing is evicted or aborted on them."""

    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "small", "big")
        answer = asyncio.create_task(daemon.ask("big", tokens=100))
        await asyncio.sleep(7)
        daemon.sleep_machine(seconds)
        ticks = watch.ticks
        await until(lambda: watch.ticks > ticks, 11)
        assert await answer == "finished"
        assert await daemon.ask("small") == "finished"
        assert watch.notable_actions == []
        assert set(daemon.in_memory()) == {"small", "big"}

    played(scene)


def test_critical_pressure_of_the_system_only_pauses_admission() -> None:
    """ "critical" pauses admission as a soft level does; running requests go on."""

    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "small", "middle")
        running = asyncio.create_task(daemon.ask("small", tokens=100))
        await asyncio.sleep(3)
        daemon.mac.forced_pressure = CRITICAL
        await until(lambda: daemon.decision.memory.paused, 11)
        waiting = asyncio.create_task(daemon.ask("small"))
        assert await daemon.ask("middle") == "finished"
        await asyncio.sleep(5)
        assert not waiting.done()
        assert await running == "finished"
        assert await waiting == "finished"
        daemon.mac.forced_pressure = None
        await until(lambda: not daemon.decision.memory.paused, 11)
        assert watch.notable_actions == []

    played(scene)


def test_pinned_models_stay_and_their_requests_end_only_in_an_emergency() -> None:
    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        await loaded(daemon, "small", "middle")
        running = asyncio.create_task(daemon.ask("big", tokens=2000))
        await asyncio.sleep(10)
        daemon.mac.apps = daemon.mac.total
        assert await running == "memory_pressure_aborted"
        assert daemon.decision.memory.emergency
        await daemon.ticks(20)
        assert daemon.in_memory() == ["big"]
        daemon.mac.apps = 0
        await until(lambda: not daemon.decision.memory.paused, 30)
        assert await daemon.ask("big") == "finished"

    played(scene, pinned=["big"])


def test_steady_work_of_two_models_that_do_not_fit_together_does_not_thrash() -> None:
    """They take turns by the line for memory; the guard takes nothing, and nobody starves."""

    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        answers = []
        for _ in range(60):
            for model in ("huge", "big"):
                answers.append(asyncio.create_task(daemon.ask(model, tokens=10)))
            await asyncio.sleep(10)
        assert {await answer for answer in answers} == {"finished"}
        assert watch.notable_actions == []
        assert daemon.backend.loads <= len(answers) / 2

    played(scene, size=64)


def test_a_model_at_the_edge_is_not_loaded_and_dropped_again_and_again() -> None:
    """No eternal reload, whatever other apps take: loads and evictions come to an end."""

    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        for share in range(10, 70, 6):
            daemon.mac.apps = daemon.mac.total * share // 100
            await daemon.ticks(6)
            loads = daemon.backend.loads
            for _ in range(12):
                await daemon.ask("big", tokens=40, deadline=20.0)
                await asyncio.sleep(5)
            assert daemon.backend.loads - loads <= 2, f"apps at {share} %"

    played(scene, size=32)


def test_what_other_apps_gave_back_serves_a_load_within_seconds() -> None:
    """An idle guard looks every 30 s; a request makes it look, and keeps it looking."""

    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        usual = daemon.mac.apps
        daemon.mac.apps += 90 * GiB
        await daemon.ticks(4)
        await asyncio.sleep(5)
        assert await daemon.ask("big") == "insufficient_memory"
        daemon.mac.apps = usual
        await asyncio.sleep(4)
        assert await daemon.ask("big") == "finished"
        assert watch.notable_actions == []

    played(scene)


def test_nothing_is_aborted_on_the_old_numbers_of_a_device_in_a_long_step() -> None:
    """The footprint alone still sets the level; the requests end once the numbers are fresh."""

    async def scene(daemon: SimulatedDaemon, watch: Watch) -> None:
        request = asyncio.create_task(daemon.ask("big", tokens=2000))
        await asyncio.sleep(25)
        daemon.backend.slowness = 120.0
        await asyncio.sleep(8)
        mac, reserve = daemon.mac, daemon.decision.memory.ceilings.reserve
        mac.apps = mac.total - mac.wired - reserve - int(mac.footprint / 0.97)
        await until(lambda: daemon.decision.memory.level is Level.HARD, 10)
        assert not daemon.decision.memory.usage.fresh
        await daemon.ticks(4)
        assert daemon.decision.rule == "wait_for_fresh_numbers"
        assert watch.notable_actions == []
        assert await request == "memory_pressure_aborted"
        assert daemon.in_memory() == ["big"]

    played(scene)
