import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from omlxd.enforcer.enforcer import MAX_LOOKS, Enforcer
from omlxd.enforcer.ports import Activity, GuardPorts
from omlxd.policy.actions import (
    AbortRequests,
    Action,
    ActionOutcome,
    EvictModel,
    MarkPendingUnload,
    WalkStoreCap,
)
from omlxd.policy.pressure import Level
from omlxd.policy.readings import AllocatorSample, ModelView
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.units import GiB
from tests.support.fake_guard import FakeGuard

CEILING = 10 * GiB


class Machine(FakeGuard):
    """The guard with a ceiling of 10 GiB unless told otherwise."""

    def __init__(self, policy: GuardPolicy | None = None) -> None:
        super().__init__(policy or GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=CEILING))

    @property
    def idle_checks(self) -> int:
        return self.ticks

    @property
    def notable_actions(self) -> list[Action]:
        return [a for a in self.applied if not isinstance(a, WalkStoreCap)]


def model(name: str, size: int, last_used: float, **changes: Any) -> ModelView:
    idle = ModelView(name, size, 0, False, 0, False, last_used)
    return replace(idle, **changes)


async def test_a_tick_hands_the_limits_on_also_when_all_is_ok() -> None:
    machine = Machine()
    await machine.tick()
    await machine.tick()
    assert [limits.enabled for limits in machine.limits] == [True, True]
    assert machine.limits[0].hard_limit == CEILING
    assert machine.notable_actions == []


async def test_one_tick_unloads_until_the_soft_mark_and_no_further() -> None:
    machine = Machine()
    machine.models = (model("a", 2 * GiB, 1), model("b", 2 * GiB, 2), model("c", 5 * GiB, 3))
    machine.footprint = int(9.2 * GiB)
    await machine.tick()
    assert [a.model_id for a in machine.notable_actions if isinstance(a, EvictModel)] == ["a"]
    assert machine.enforcer.latest is not None
    assert machine.enforcer.latest.decision.memory.level is Level.OK


async def test_a_refused_unload_is_not_asked_for_again_in_the_same_tick() -> None:
    machine = Machine()
    machine.models = (model("a", 2 * GiB, 1), model("b", 2 * GiB, 2))
    machine.footprint = int(9.9 * GiB)
    machine.effect = lambda action: ActionOutcome(action, accepted=False)
    looks = await machine.tick()
    assert [a.model_id for a in machine.notable_actions if isinstance(a, EvictModel)] == ["a", "b"]
    assert looks < MAX_LOOKS


async def test_monitor_mode_decides_the_same_and_does_nothing() -> None:
    machine = Machine(GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=CEILING, enforce=False))
    machine.models = (model("a", 2 * GiB, 1), model("b", 2 * GiB, 2))
    machine.footprint = int(9.9 * GiB)
    await machine.tick()
    assert machine.applied == []
    asked = [a for e in machine.enforcer.record.entries for a in e.decision.actions]
    assert any(isinstance(a, EvictModel) for a in asked)
    assert not machine.limits[-1].enabled


async def test_an_action_that_raises_is_refused_and_the_others_go_on() -> None:
    machine = Machine()
    machine.models = (model("a", 2 * GiB, 1, busy=True),)
    machine.models = (replace(machine.models[0], requests=1),)
    machine.footprint = 13 * GiB

    def fail_first(action: Action) -> ActionOutcome:
        if len(machine.notable_actions) == 1:
            raise RuntimeError("no")
        return ActionOutcome(action)

    machine.effect = fail_first
    await machine.tick()
    assert any(isinstance(a, MarkPendingUnload) for a in machine.notable_actions)


async def test_uneventful_decisions_in_a_row_are_one_entry() -> None:
    machine = Machine()
    for _ in range(5):
        await machine.tick()
    (entry,) = machine.enforcer.record.entries
    assert entry.times == 5
    assert entry.last_at - entry.at == 4.0


WATCHING = GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=CEILING, enforce=False)


@pytest.mark.parametrize(
    ("policy", "models"),
    [
        (WATCHING, (model("a", 2 * GiB, 1), model("b", 2 * GiB, 2))),
        (None, (model("p", 2 * GiB, 1, pinned=True),)),
    ],
)
async def test_what_recurs_in_every_tick_is_told_once(
    policy: GuardPolicy | None, models: tuple[ModelView, ...]
) -> None:
    machine = Machine(policy)
    machine.models = models
    machine.footprint = int(9.9 * GiB)
    record, heard = machine.enforcer.record, []

    async def follow() -> None:
        async for entry in record.follow():
            heard.append(entry.number)

    listener = asyncio.create_task(follow())
    await asyncio.sleep(0)
    with capture_logs() as logs:
        await machine.tick()
        # At the second tick the level is the same as before, so nothing changes.
        await machine.tick()
        told = [entry.number for entry in record.entries]
        for step in range(20):
            machine.footprint += step  # a new size alone makes no new entry
            await machine.tick()
    listener.cancel()
    assert [entry.number for entry in record.entries] == told == heard
    infos = [log["number"] for log in logs if log["log_level"] == "info"]
    assert infos == [entry.number for entry in record.entries if entry.eventful]
    last = record.entries[-1]
    assert (last.times, last.last_at) == (22, machine.now)
    assert machine.enforcer.latest is last
    assert last.decision.memory.usage.bytes == machine.footprint


async def test_what_had_an_effect_is_told_each_time() -> None:
    machine = Machine()
    machine.models = (replace(model("a", 2 * GiB, 1, busy=True), requests=1),)
    machine.footprint = int(9.8 * GiB)
    for _ in range(4):
        await machine.tick()
    ended = [
        entry.times
        for entry in machine.enforcer.record.entries
        if any(isinstance(done.action, AbortRequests) for done in entry.outcomes)
    ]
    assert ended == [1, 1, 1, 1]
    machine.effect = lambda action: ActionOutcome(action, accepted=False)
    before = len(machine.enforcer.record.entries)
    for _ in range(4):
        await machine.tick()
    assert len(machine.enforcer.record.entries) < before + 6


async def test_what_differs_from_the_tick_before_is_told_from_there_on() -> None:
    machine = Machine(WATCHING)
    machine.models = (model("a", 2 * GiB, 1), model("b", 2 * GiB, 2, pinned=True))
    machine.footprint = int(9.9 * GiB)
    await machine.tick()
    await machine.tick()
    count = len(machine.enforcer.record.entries)
    machine.models = (model("a", 2 * GiB, 1), model("b", 2 * GiB, 2))
    machine.footprint = 14 * GiB
    await machine.tick()
    news = machine.enforcer.record.entries[count:]
    assert news
    assert machine.enforcer.latest is news[-1]
    assert [entry.times for entry in news] == [1] * len(news)


async def test_what_the_pool_gave_back_is_told_with_the_next_decision() -> None:
    """the decisions as they happen, each with reading, level, actions and what they freed"""
    machine = Machine()
    await machine.tick()
    machine.reclaimed = 3 * GiB
    await machine.tick()
    await machine.tick()
    machine.reclaimed = 3 * GiB + 8
    await machine.tick()
    machine.reclaimed = 5 * GiB + 8
    await machine.tick()
    told = [(entry.number, entry.reclaimed) for entry in machine.enforcer.record.entries]
    assert told == [(1, 0), (2, 3 * GiB), (3, 8), (4, 2 * GiB)]


async def test_followers_hear_of_eventful_decisions() -> None:
    machine = Machine()
    heard = []

    async def follow() -> None:
        async for entry in machine.enforcer.record.follow():
            heard.append(entry)

    listener = asyncio.create_task(follow())
    await asyncio.sleep(0)
    machine.models = (model("a", 2 * GiB, 1), model("b", 2 * GiB, 2))
    machine.footprint = int(9.2 * GiB)
    await machine.tick()
    await asyncio.sleep(0)
    listener.cancel()
    assert any(isinstance(a, EvictModel) for e in heard for a in e.decision.actions)
    assert [e.number for e in heard] == sorted(e.number for e in heard)


async def test_a_level_change_is_logged_with_current_soft_hard_and_ceiling() -> None:
    """A level change is logged with current, soft, hard, ceiling, and handed on at once."""
    machine = Machine()
    machine.models = (model("p", 2 * GiB, 1, pinned=True),)
    with capture_logs() as logs:
        await machine.tick()
        machine.footprint = int(9.2 * GiB)
        await machine.tick()
        await machine.tick()
    told = [log for log in logs if log["event"] == "guard_decision" and log["log_level"] == "info"]
    (change,) = told
    assert (change["was"], change["pressure"], change["paused"]) == ("ok", "soft", True)
    assert change["usage"] == int(9.2 * GiB)
    assert (change["soft"], change["hard"]) == (int(9.0 * GiB), int(9.7 * GiB))
    assert (change["ceiling"], change["binding"]) == (CEILING, "custom")
    assert change["reading_at"] == machine.now - 1.0
    assert [limits.admission_paused for limits in machine.limits] == [False, True, True]


async def test_a_tick_that_fails_is_reported_and_the_loop_goes_on() -> None:
    """An exception in a tick is logged with its traceback and the loop goes on. After each tick
    idle timeouts are checked."""
    machine = Machine()
    machine.read_error = OSError("no /proc")
    with capture_logs() as logs:
        running = asyncio.create_task(machine.enforcer.run())
        while machine.enforcer.report is None:
            await asyncio.sleep(0)
    (told,) = logs
    assert (told["event"], told["log_level"]) == ("guard_tick_failed", "error")
    assert told["exc_info"], "with its traceback"
    assert machine.enforcer.failures == 1
    assert machine.enforcer.report.failed == "OSError: no /proc"
    assert machine.idle_checks == 1
    machine.read_error = None
    machine.enforcer.wake()
    while machine.enforcer.latest is None:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not machine.enforcer.running


async def test_a_stop_that_comes_together_with_a_wake_is_not_lost() -> None:
    machine = Machine()
    running = asyncio.create_task(machine.enforcer.run())
    while machine.idle_checks < 1:
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    machine.enforcer._woken.set()
    # The wait ends now; the waiting task runs after this.
    await asyncio.sleep(0)
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=5)
    assert done
    assert running.cancelled()


async def test_a_wake_from_another_thread_makes_it_look_at_once() -> None:
    """wake() re-checks at once, from any thread"""
    machine = Machine()
    looked = asyncio.Event()
    machine.after_tick = looked.set
    running = asyncio.create_task(machine.enforcer.run())
    async with asyncio.timeout(10):
        await looked.wait()
        for active, interval in ((False, 30.0), (True, 1.0)):
            # The loop sleeps meanwhile; only the wake can end the sleep.
            looked.clear()
            threading.Timer(0.01, machine.enforcer.wake, kwargs={"active": active}).start()
            await looked.wait()
            assert machine.enforcer.interval == interval
    running.cancel()


async def test_a_wake_during_a_tick_makes_another_tick() -> None:
    machine = Machine()
    ticks = 0

    async def sample() -> AllocatorSample | None:
        nonlocal ticks
        ticks += 1
        if ticks == 1:
            machine.enforcer.wake()
            await asyncio.sleep(0)
        return None

    machine.sample = sample  # type: ignore[method-assign]
    machine.enforcer = Enforcer(
        GuardPorts(
            clock=lambda: machine.now,
            read=machine.read,
            sample=sample,
            models=lambda: (),
            activity=lambda: Activity(False, False, False),
            apply=machine.apply,
            set_limits=machine.limits.append,
            after_tick=machine.ticked,
        ),
        machine.settings,
    )
    running = asyncio.create_task(machine.enforcer.run())
    while machine.idle_checks < 2:
        await asyncio.sleep(0)
    running.cancel()
    assert ticks >= 2


async def test_the_pace_follows_activity_and_the_hint() -> None:
    machine = Machine()
    await machine.tick()
    assert machine.enforcer.interval == 30.0
    machine.models = (model("a", GiB, 1),)
    assert machine.enforcer.interval == 10.0
    machine.models = (model("a", GiB, 1, busy=True),)
    assert machine.enforcer.interval == 1.0
    machine.models = ()
    running = asyncio.create_task(machine.enforcer.run())
    while machine.idle_checks < 1:
        await asyncio.sleep(0)
    machine.enforcer.wake(active=True)
    while machine.idle_checks < 2:
        await asyncio.sleep(0)
    assert machine.enforcer.interval == 1.0
    machine.now += 61.0
    assert machine.enforcer.interval == 30.0
    running.cancel()


async def test_a_look_asked_for_ends_after_a_whole_tick() -> None:
    machine = Machine()
    assert not await machine.enforcer.look_now(0.01)
    running = asyncio.create_task(machine.enforcer.run())
    while machine.idle_checks < 1:
        await asyncio.sleep(0)
    machine.settings.change({"custom_ceiling_gb": 20})
    assert await machine.enforcer.look_now(5)
    assert machine.limits[-1].hard_limit == 20 * GiB
    running.cancel()


async def test_followers_get_what_is_kept_first_and_are_let_go_at_the_end() -> None:
    machine = Machine()
    machine.models = (model("a", 2 * GiB, 1), model("b", 2 * GiB, 2))
    machine.footprint = int(9.2 * GiB)
    running = asyncio.create_task(machine.enforcer.run())
    while machine.idle_checks < 1:
        await asyncio.sleep(0)
    heard: list[int] = []

    async def follow() -> None:
        async for entry in machine.enforcer.record.follow(replay=True):
            heard.append(entry.number)

    listener = asyncio.create_task(follow())
    await asyncio.sleep(0)
    kept = [entry.number for entry in machine.enforcer.record.entries]
    assert heard == kept
    machine.footprint = int(9.9 * GiB)
    assert await machine.enforcer.look_now(5)
    running.cancel()
    async with asyncio.timeout(5):
        await listener
    assert heard == list(range(1, len(machine.enforcer.record.entries) + 1))
    assert len(heard) > len(kept)
