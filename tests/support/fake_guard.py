"""A guard with the real enforcer and settings on fake ports; the test sets the memory use."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from omlxd.enforcer.enforcer import Enforcer
from omlxd.enforcer.ports import Activity, GuardPorts
from omlxd.enforcer.settings import From, GuardSettings
from omlxd.policy.actions import Action, ActionOutcome, EvictModel
from omlxd.policy.ceiling import Limits
from omlxd.policy.decision import Decision
from omlxd.policy.readings import AllocatorSample, MemoryReading, ModelView, OsPressure
from omlxd.policy.tiers import GuardPolicy
from omlxd.units import GiB


class FakeGuard:
    """A machine of 64 GiB. An unloaded model disappears at once, with its bytes."""

    def __init__(
        self,
        policy: GuardPolicy | None = None,
        *,
        origins: Mapping[str, From] | None = None,
        stored: Mapping[str, Any] | None = None,
    ) -> None:
        self.now = 100.0
        self.footprint = GiB
        self.device_cap: int | None = None
        self.degraded: tuple[str, ...] = ()
        self.os_pressure: OsPressure | None = None
        self.models: tuple[ModelView, ...] = ()
        self.stored: Mapping[str, Any] = stored or {}
        self.store_error: OSError | None = None
        self.ticks = 0
        self.applied: list[Action] = []
        self.limits: list[Limits] = []
        self.reclaimed = 0
        self.after_tick: Callable[[], object] = lambda: None
        self.read_error: Exception | None = None
        self.effect: Callable[[Action], ActionOutcome] = self.take
        self.settings = GuardSettings(
            policy or GuardPolicy(), origins or {}, self.stored, self._store
        )
        self.enforcer = Enforcer(
            GuardPorts(
                clock=lambda: self.now,
                read=self.read,
                sample=self.sample,
                models=lambda: self.models,
                activity=lambda: Activity(
                    loading=any(m.loading for m in self.models),
                    active=any(m.busy for m in self.models),
                    loaded=bool(self.models),
                ),
                apply=self.apply,
                set_limits=self.limits.append,
                after_tick=self.ticked,
                reclaimed=lambda: self.reclaimed,
            ),
            self.settings,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeGuard"]:
        """The guard's loop, past its first tick."""
        task = asyncio.create_task(self.enforcer.run())
        async with asyncio.timeout(5):
            while not self.ticks:
                await asyncio.sleep(0)
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _store(self, values: Mapping[str, Any]) -> None:
        if self.store_error is not None:
            raise self.store_error
        self.stored = values

    def read(self, now: float) -> MemoryReading:
        if self.read_error is not None:
            raise self.read_error
        return MemoryReading(
            now,
            64 * GiB,
            footprint=self.footprint,
            free=40 * GiB,
            inactive=0,
            active=0,
            external=0,
            device_cap=self.device_cap,
            degraded=self.degraded,
            os_pressure=self.os_pressure,
        )

    async def sample(self) -> AllocatorSample | None:
        return AllocatorSample(self.now, self.footprint, 0, self.footprint)

    async def apply(self, action: Action, decision: Decision) -> ActionOutcome:
        self.applied.append(action)
        return self.effect(action)

    def take(self, action: Action) -> ActionOutcome:
        if isinstance(action, EvictModel):
            gone = next(m for m in self.models if m.id == action.model_id)
            self.models = tuple(m for m in self.models if m is not gone)
            self.footprint -= gone.bytes
            return ActionOutcome(action, freed=gone.bytes)
        return ActionOutcome(action)

    async def tick(self, after: float = 1.0) -> int:
        self.now += after
        return await self.enforcer.tick()

    def ticked(self, memory: object) -> None:
        self.ticks += 1
        self.after_tick()
