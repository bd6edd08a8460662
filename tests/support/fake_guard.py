"""A guard with the real enforcer and settings on fake ports; the test sets the memory use."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from omlxd.enforcer.enforcer import Enforcer
from omlxd.enforcer.ports import Activity, GuardPorts
from omlxd.enforcer.settings import From, GuardSettings
from omlxd.policy.actions import Action, ActionOutcome
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
        self.settings = GuardSettings(
            policy or GuardPolicy(), origins or {}, self.stored, self._store
        )
        self.enforcer = Enforcer(
            GuardPorts(
                clock=lambda: self.now,
                read=self._read,
                sample=self._sample,
                models=lambda: self.models,
                activity=lambda: Activity(False, False, bool(self.models)),
                apply=self._apply,
                set_limits=lambda limits: None,
                after_tick=self._ticked,
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

    def _read(self, now: float) -> MemoryReading:
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

    async def _sample(self) -> AllocatorSample | None:
        return AllocatorSample(self.now, self.footprint, 0, self.footprint)

    async def _apply(self, action: Action, decision: Decision) -> ActionOutcome:
        model = next((m for m in self.models if m.id == getattr(action, "model_id", None)), None)
        if model is None:
            return ActionOutcome(action, accepted=False)
        self.models = tuple(m for m in self.models if m is not model)
        self.footprint -= model.bytes
        return ActionOutcome(action, freed=model.bytes)

    def _ticked(self, memory: object) -> None:
        self.ticks += 1
