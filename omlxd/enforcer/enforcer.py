"""The memory enforcer: one task that reads, decides, applies, looks again and records."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import structlog

from omlxd.enforcer.ports import GuardPorts
from omlxd.enforcer.readers import with_footprints
from omlxd.enforcer.record import Entry, Record, notable_actions
from omlxd.enforcer.settings import GuardSettings
from omlxd.errors import StateUnwritable
from omlxd.memory_text import binding_name, wired_limit_warnings
from omlxd.policy.actions import ActionOutcome
from omlxd.policy.decision import Decision, GuardState, Snapshot
from omlxd.policy.eviction import Eviction
from omlxd.policy.memory_state import MemoryState
from omlxd.policy.pressure import activity_hint, poll_interval
from omlxd.policy.readings import AllocatorSample, MemoryReading
from omlxd.policy.relief import decide
from omlxd.policy.tiers import clamps
from omlxd.policy.usage import measure_usage

log = structlog.get_logger(__name__)

MAX_LOOKS = 24
"""The maximum of looks in one tick; further looks wait for the next tick."""
ARRIVAL_INTERVAL = 0.5
"""Seconds, half a poll. Requests that arrive closer together than this wake the guard once."""
FIRST_TICK_LIMIT = 5.0
"""Seconds that the start waits for the first tick."""
CHANGE_LIMIT = 3.0
"""Seconds that a change of the policy waits for the next tick. It is in force even without it."""


@dataclass(frozen=True, slots=True)
class TickReport:
    """How the last tick went. Times in seconds; ``failed`` is the text of the error."""

    at: float
    took: float
    looks: int
    failed: str | None = None


class Enforcer:
    """The running guard; the API and the pool use it too. It lives on the event loop: only ``wake``
    may be called from another thread.

    Attributes:
        published: the memory at the last decision; None before the first decision.
    """

    def __init__(self, ports: GuardPorts, settings: GuardSettings) -> None:
        self._ports = ports
        self.settings = settings
        self._state = GuardState()
        self._hint: float | None = None
        self._reclaimed = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._asked: list[asyncio.Future[None]] = []
        self._last_arrival: float | None = None
        self._changing = asyncio.Lock()
        # A thread of its own, so that the guard never waits for other work in threads.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="guard-reader")
        self.published: MemoryState | None = None
        self.record = Record()
        self.report: TickReport | None = None
        self.failures = 0

    @property
    def running(self) -> bool:
        return self._loop is not None

    @property
    def now(self) -> float:
        """The time by the guard's clock."""
        return self._ports.clock()

    @property
    def latest(self) -> Entry | None:
        """The last decision; None before the first tick."""
        return self.record.last

    def memory(self) -> MemoryState | None:
        """For the admission of a load: the published memory, with usage measured now.

        None before the first decision and when the loop does not run.
        """
        memory = self.published
        if memory is None or not self.running:
            return None
        now = self.now
        reading = with_footprints(memory.reading, *self._ports.footprints(), now)
        usage, _ = measure_usage(reading, self._ports.latest_sample(), self._state.release, now)
        return replace(memory, reading=reading, usage=usage, age=now - memory.at)

    @property
    def interval(self) -> float:
        """Seconds until the next look, if the tick ended now."""
        activity = self._ports.activity()
        return poll_interval(
            self._state.level,
            paused=self._state.pause is not None,
            hinted=self._hint is not None and self._ports.clock() < self._hint,
            loading=activity.loading,
            active=activity.active,
            loaded=activity.loaded,
        )

    def wake(self, *, active: bool = False) -> None:
        """Look again at once. Any thread may call it. ``active``: look more often for a while."""
        if self._loop is None or self._loop.is_closed():
            return
        if active:
            self._loop.call_soon_threadsafe(self._expect_activity)
        self._loop.call_soon_threadsafe(self._woken.set)

    async def look_now(self, limit: float) -> bool:
        """Wait until a tick that begins now has ended; False when ``limit`` seconds pass before."""
        if not self.running:
            return False
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(over)
        self._woken.set()
        done, _ = await asyncio.wait({over}, timeout=limit)
        return bool(done)

    def arrived(self) -> None:
        """A request has arrived: look again now, and more often for a while."""
        now, last = self.now, self._last_arrival
        if last is None or not 0 <= now - last < ARRIVAL_INTERVAL:
            self._last_arrival = now
            self.wake(active=True)

    def evicted(self, eviction: Eviction) -> None:
        """Record a model that the pool evicts to make room for a load."""
        self.record.add_eviction(eviction, self.now, time.time())

    async def begin(self) -> None:
        """Call it once when the runtime is up: take a first look, and log warnings for the user."""
        for line in self.settings.dropped:
            log.warning("guard_setting_dropped", reason=line)
        if not await self.look_now(FIRST_TICK_LIMIT):
            log.warning("guard_not_ready", waited=FIRST_TICK_LIMIT)
        if self.published is None:
            return
        policy, ceilings = self.settings.in_force.policy, self.published.ceilings
        for clamp in clamps(policy, ceilings.static, ceilings.metal):
            log.warning("guard_setting_clamped", cause=clamp.cause.value, reason=clamp.text)
        for warning in wired_limit_warnings(ceilings, self._ports.wired_limit()):
            log.warning("wired_limit_warning", reason=warning)

    async def change(self, body: Mapping[str, Any]) -> None:
        """Set keys of the policy, and wait for the tick that follows, within a limit.

        Raises InvalidRequest, SettingLocked, and StateUnwritable when the change cannot be saved
        for the next start. Then nothing has changed.
        """
        # Shielded: the whole change is made, even when the client disconnects.
        await asyncio.shield(asyncio.create_task(self._set(body)))
        await self.look_now(CHANGE_LIMIT)

    async def _set(self, body: Mapping[str, Any]) -> None:
        async with self._changing:
            try:
                # In a thread: it waits for the disk.
                await asyncio.to_thread(self.settings.change, body)
            except OSError as error:
                raise StateUnwritable(
                    f"The change was not made: it cannot be saved ({error.strerror or error})."
                ) from error

    def _expect_activity(self) -> None:
        self._hint = activity_hint(self._hint, self._ports.clock(), self.interval)

    async def run(self) -> None:
        """Tick until cancelled. Logs an exception in a tick and goes on. Call it only once."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                self._woken.clear()
                asked, self._asked = self._asked, []
                await self._guarded_tick()
                for over in asked:
                    over.set_result(None)
                await self._pause(self.interval)
        finally:
            self._loop = None
            self.record.close()
            self._reader.shutdown(wait=False)

    async def _pause(self, seconds: float) -> None:
        # Not wait_for: in Python 3.11 it loses a cancellation that comes together with a wake.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    async def _guarded_tick(self) -> None:
        at, began = self._ports.clock(), time.perf_counter()
        looks, failed = 0, None
        try:
            looks = await self.tick()
        except Exception as error:
            log.exception("guard_tick_failed")
            failed = f"{type(error).__name__}: {error}"
            self.failures += 1
            self._state = replace(self._state, tick=None)
        try:
            self._ports.after_tick(self.published)
        except Exception:
            log.exception("guard_after_tick_failed")
        self.report = TickReport(at, time.perf_counter() - began, looks, failed)

    async def tick(self) -> int:
        """One tick; returns how many looks it took."""
        policy = self.settings.in_force.policy
        # The sample comes first: on a device with its own memory, the reading is made from it.
        sample = await self._ports.sample()
        reading = await self._read()
        outcomes: tuple[ActionOutcome, ...] = ()
        for look in range(1, MAX_LOOKS + 1):
            before = self._state
            decision = decide(before, self._snapshot(reading, sample, outcomes), policy)
            self._state = decision.next_state
            self.published = decision.memory
            if decision.memory.limits.generation != before.limits.generation or look == 1:
                self._ports.set_limits(decision.memory.limits)
            outcomes = await self._apply(decision)
            self._keep(before, decision, outcomes)
            if not decision.look_again:
                return look
            sample = await self._ports.sample()
            reading = _renewed(reading, await self._read())
        log.warning("guard_tick_cut", looks=MAX_LOOKS, pressure=self._state.level.label)
        self._state = replace(self._state, tick=None)
        return MAX_LOOKS

    async def _read(self) -> MemoryReading:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, self._ports.read, self._ports.clock())

    def _snapshot(
        self,
        reading: MemoryReading,
        sample: AllocatorSample | None,
        outcomes: tuple[ActionOutcome, ...],
    ) -> Snapshot:
        return Snapshot(
            now=self._ports.clock(),
            reading=reading,
            sample=sample,
            models=self._ports.models(),
            hot_cache=self._ports.hot_cache(),
            image_cache_bytes=self._ports.image_cache_bytes(),
            outcomes=outcomes,
        )

    async def _apply(self, decision: Decision) -> tuple[ActionOutcome, ...]:
        """Carry out the actions in order. An action that fails counts as refused."""
        if not decision.memory.enforce:
            return ()
        outcomes = []
        for action in decision.actions:
            try:
                outcomes.append(await self._ports.apply(action, decision))
            except Exception:
                log.exception("guard_action_failed", action=type(action).__name__)
                outcomes.append(ActionOutcome(action, accepted=False))
        return tuple(outcomes)

    def _keep(
        self, before: GuardState, decision: Decision, outcomes: tuple[ActionOutcome, ...]
    ) -> None:
        memory = decision.memory
        changed = (memory.level, memory.pause) != (before.level, before.pause)
        now, reclaimed = self.now, self._ports.reclaimed()
        since, self._reclaimed = reclaimed - self._reclaimed, reclaimed
        entry = self.record.add(
            Entry(0, now, now, time.time(), 1, decision, outcomes, changed, since),
            begins=before.tick is None,
        )
        write = log.info if entry.eventful and entry.times == 1 else log.debug
        write(
            "guard_decision",
            number=entry.number,
            pressure=memory.level.label,
            was=before.level.label,
            emergency=memory.emergency,
            paused=memory.paused,
            pause=None if memory.pause is None else memory.pause.value,
            rule=decision.rule,
            reason=decision.reason,
            actions=[str(action) for action in notable_actions(decision.actions)],
            applied=memory.enforce,
            reclaimed=entry.reclaimed,
            usage=memory.usage.bytes,
            ceiling=memory.ceiling,
            soft=memory.ceilings.soft,
            hard=memory.ceilings.hard,
            binding=binding_name(memory.ceilings, memory.ceilings.binding),
            reading_at=memory.reading.taken_at,
        )


def _renewed(first: MemoryReading, now: MemoryReading) -> MemoryReading:
    """For a later look of a tick: new footprints, and the host counters of its first look.

    The system limits how often the counters change, and does not say so. Old counters together with
    a new footprint would lower the ceiling just after an unload.
    """
    sources = {
        **first.sources,
        **{k: v for k, v in now.sources.items() if k in ("footprint", "graphics_footprint")},
    }
    return replace(
        first,
        footprint=now.footprint,
        graphics_footprint=now.graphics_footprint,
        sources=sources,
    )
