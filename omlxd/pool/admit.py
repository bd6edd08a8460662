"""May this model be loaded now? Puts the question to the policy, with what is known now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omlxd.policy.admission import Admit, LoadContext, LoadNeed, LoadPlan, Wait, plan_load
from omlxd.policy.memory_state import MemoryState
from omlxd.policy.tiers import Tier
from omlxd.policy.usage import Usage
from omlxd.pool.entry import Queued
from omlxd.pool.estimate import load_need, working_memory
from omlxd.pool.failures import memory_facts
from omlxd.pool.fit import Fit, TierFit, fits
from omlxd.pool.measured_sizes import MeasuredSizes
from omlxd.pool.protocol import PoolPorts
from omlxd.pool.record import ModelRecord
from omlxd.pool.view import views

RECENT = 2.0
"""Seconds since the guard looked; a load is judged by nothing older."""
LOOK_LIMIT = 3.0
"""Seconds in line after which it is judged by what there is, should the guard fail to look."""


@dataclass(frozen=True, slots=True)
class FitAsk:
    """``concurrency`` requests of ``context`` tokens; ``promised`` bytes are taken already."""

    context: int
    concurrency: int
    promised: int


class MemoryAdmission:
    def __init__(self, ports: PoolPorts, sizes: MeasuredSizes) -> None:
        self._ports = ports
        self._sizes = sizes

    def __call__(
        self, record: ModelRecord, records: Sequence[ModelRecord], promised: int
    ) -> LoadPlan:
        """What to do about a load; ``promised`` bytes are not allocated yet.

        Where nothing is known of the machine's memory every load is admitted.
        """
        need = load_need(record.model, self._sizes)
        memory = self._ports.memory()
        if memory is None:
            return Admit(need.bytes)
        if memory.age > RECENT and self._in_line(record) < LOOK_LIMIT:
            self._ports.wake()
            return Wait("memory is being looked at")
        scene = replace(
            self._scene(memory, records, promised),
            evicted=record.evicted_for,
            since_stopped=self._ports.clock() - record.stopped_at,
        )
        return plan_load(need, scene, memory.ceilings)

    def shortage(self, record: ModelRecord) -> Mapping[str, Any]:
        """Why its load has to wait, in numbers; empty where nothing is known of the memory."""
        memory = self._ports.memory()
        need = load_need(record.model, self._sizes)
        return {} if memory is None else memory_facts(need, memory)

    def preview(self, record: ModelRecord, records: Sequence[ModelRecord], ask: FitAsk) -> Fit:
        """What admission would say to the model with so much work, under each tier."""
        model, memory = record.model, self._ports.memory()
        weights = self._sizes.expected(model)
        if record.info is not None:
            weights = record.info.weights_bytes
        beside = working_memory(model, ask.context, ask.concurrency)
        work = 0 if beside.footprint is None else beside.footprint.bytes
        if record.info is None:
            # Its load would be given room for a first prompt, however little is asked for here.
            work = max(work, load_need(model, self._sizes).headroom_bytes)
        need = LoadNeed(record.id, weights_bytes=weights, headroom_bytes=work)
        tiers: Mapping[Tier, TierFit] = {}
        if memory is not None:
            scene = self._scene(memory, records, ask.promised)
            if record.info is not None:
                # As if it were not loaded: weights that are there are not needed twice.
                scene = replace(scene, usage=_without(scene.usage, weights))
            tiers = fits(need, scene, memory)
        return Fit(
            model_id=record.id,
            context=ask.context,
            concurrency=ask.concurrency,
            weights_bytes=weights,
            weights_measured=self._sizes.measured(model) is not None,
            loaded=record.info is not None,
            kv_bytes=None if beside.footprint is None else beside.footprint.kv,
            prefill_bytes=None if beside.footprint is None else beside.footprint.prefill,
            unknown=beside.unknown,
            needed_bytes=need.bytes,
            tier=None if memory is None else memory.ceilings.tier,
            tiers=tiers,
        )

    def _in_line(self, record: ModelRecord) -> float:
        """Seconds."""
        state = record.state
        return self._ports.clock() - state.since if isinstance(state, Queued) else LOOK_LIMIT

    def _scene(
        self, memory: MemoryState, records: Sequence[ModelRecord], promised: int
    ) -> LoadContext:
        return LoadContext(
            models=views(records, self._ports.engine),
            usage=memory.usage,
            reserved=promised,
            paused=memory.paused,
            enforce=memory.enforce,
        )


def _without(usage: Usage, size: int) -> Usage:
    def less(known: int | None) -> int | None:
        return None if known is None else max(0, known - size)

    return replace(usage, bytes=less(usage.bytes), active=less(usage.active))
