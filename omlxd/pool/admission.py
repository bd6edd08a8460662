"""Decides whether a model may be loaded, and whether it would fit, by asking the policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, assert_never

from omlxd.backend.shapes.read import UnknownShape, model_shape
from omlxd.library.catalog import CatalogModel
from omlxd.memory_text import binding_name, refusal_remedy
from omlxd.policy.admission import (
    Admit,
    EvictFirst,
    LoadContext,
    LoadNeed,
    LoadPlan,
    RefusalKind,
    Refuse,
    Wait,
    plan_load,
)
from omlxd.policy.ceiling import Ceilings, ceilings_by_tier
from omlxd.policy.footprint import Footprint, Workload, footprint
from omlxd.policy.memory_state import MemoryState
from omlxd.policy.tiers import Tier
from omlxd.policy.usage import Usage
from omlxd.pool.failures import memory_shortage
from omlxd.pool.measured_sizes import MeasuredSizes
from omlxd.pool.ports import PoolPorts
from omlxd.pool.record import ModelRecord, views
from omlxd.pool.states import Queued

RECENT = 2.0
"""Seconds; older readings of the guard are not used to decide about a load."""
READING_LIMIT = 3.0
"""Seconds in the queue after which an old reading is used if the guard takes no new one."""
FIRST_PREFILL = 2048
"""Tokens of the prompt whose working memory is the headroom of a load."""
UNKNOWN_SHARE = 0.05
"""Share of the weights that is the headroom of a model whose shape is not understood."""


@dataclass(frozen=True, slots=True)
class WorkingMemory:
    """What a model takes beyond its weights. ``unknown`` says why ``footprint`` is None."""

    footprint: Footprint | None
    unknown: str | None = None


def working_memory(model: CatalogModel, context: int, sequences: int = 1) -> WorkingMemory:
    """KV of ``sequences`` of ``context`` tokens each, and the peak of a prefill."""
    shape = model_shape(model.config, model.element_bytes)
    if isinstance(shape, UnknownShape):
        return WorkingMemory(None, shape.reason)
    return WorkingMemory(footprint(shape, Workload(context=context, sequences=sequences)))


def load_need(model: CatalogModel, sizes: MeasuredSizes) -> LoadNeed:
    """What a load takes: the weights, and the headroom for a first short request."""
    weights = sizes.expected(model)
    context = min(FIRST_PREFILL, model.context_length or FIRST_PREFILL)
    first = working_memory(model, context).footprint
    headroom = int(weights * UNKNOWN_SHARE) if first is None else first.bytes
    return LoadNeed(model.id, weights_bytes=weights, headroom_bytes=headroom)


class Verdict(Enum):
    NOW = "now"
    AFTER_EVICTIONS = "after_evictions"
    """It fits after models that may be unloaded have left."""
    NOT_NOW = "not_now"
    """Other programs or pinned models are in the way."""
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class TierFit:
    """Whether it fits under one tier; bytes. If not, ``remedy`` changes the term ``binding``."""

    verdict: Verdict
    ceiling_bytes: int
    binding: str
    evict: tuple[str, ...] = ()
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer to a FitQuery, in bytes. ``unknown`` says why some of them are None.

    Attributes:
        weights_measured: the weights were measured when it was last loaded.
        needed_bytes: what the verdicts are based on. A load needs room for a first prompt, which
            may be longer than the context of the query.
        loaded: its weights are in memory already and need no further room.
        tiers: empty while nothing is known of the machine's memory.
    """

    model_id: str
    context: int
    concurrency: int
    weights_bytes: int
    weights_measured: bool
    loaded: bool
    kv_bytes: int | None
    prefill_bytes: int | None
    unknown: str | None
    needed_bytes: int
    tier: Tier | None
    tiers: Mapping[Tier, TierFit]


@dataclass(frozen=True, slots=True)
class FitQuery:
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
        """What to do about a load; ``promised`` bytes are promised to others and not allocated yet.

        Every load is admitted while nothing is known of the machine's memory.
        """
        need = load_need(record.model, self._sizes)
        memory = self._ports.memory()
        if memory is None:
            return Admit(need.bytes)
        if memory.age > RECENT and self._queued_for(record) < READING_LIMIT:
            self._ports.wake()
            return Wait("memory is being looked at")
        context = replace(
            self._context(memory, records, promised),
            evicted=record.evicted_for,
            since_stopped=self._ports.clock() - record.stopped_at,
        )
        return plan_load(need, context, memory.ceilings)

    def shortage(self, record: ModelRecord) -> Mapping[str, Any]:
        """The numbers for a load that has to wait; empty while nothing is known of the memory."""
        memory = self._ports.memory()
        need = load_need(record.model, self._sizes)
        return {} if memory is None else memory_shortage(need, memory)

    def preview(self, record: ModelRecord, records: Sequence[ModelRecord], query: FitQuery) -> Fit:
        """What admission would decide about the model with so much work, under each tier."""
        model, memory = record.model, self._ports.memory()
        weights = self._sizes.expected(model)
        if record.info is not None:
            weights = record.info.weights_bytes
        working = working_memory(model, query.context, query.concurrency)
        work = 0 if working.footprint is None else working.footprint.bytes
        if record.info is None:
            # A load needs room for a first prompt, even if the context of the query is shorter.
            work = max(work, load_need(model, self._sizes).headroom_bytes)
        need = LoadNeed(record.id, weights_bytes=weights, headroom_bytes=work)
        tiers: Mapping[Tier, TierFit] = {}
        if memory is not None:
            context = self._context(memory, records, query.promised)
            if record.info is not None:
                # ``need`` counts the loaded weights, so the usage must not count them again.
                context = replace(context, usage=_without(context.usage, weights))
            tiers = fits(need, context, memory)
        return Fit(
            model_id=record.id,
            context=query.context,
            concurrency=query.concurrency,
            weights_bytes=weights,
            weights_measured=self._sizes.measured(model) is not None,
            loaded=record.info is not None,
            kv_bytes=None if working.footprint is None else working.footprint.kv,
            prefill_bytes=None if working.footprint is None else working.footprint.prefill,
            unknown=working.unknown,
            needed_bytes=need.bytes,
            tier=None if memory is None else memory.ceilings.tier,
            tiers=tiers,
        )

    def _queued_for(self, record: ModelRecord) -> float:
        """Seconds that it has waited for memory."""
        state = record.state
        return self._ports.clock() - state.since if isinstance(state, Queued) else READING_LIMIT

    def _context(
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


def fits(need: LoadNeed, context: LoadContext, memory: MemoryState) -> Mapping[Tier, TierFit]:
    """The verdict of each tier: the plan of a load, as if the guard enforced its limits."""
    context = replace(context, enforce=True)
    return {
        tier: _verdict(plan_load(need, context, ceilings), ceilings)
        for tier, ceilings in _ceilings(memory).items()
    }


def _ceilings(memory: MemoryState) -> Mapping[Tier, Ceilings]:
    """The ceilings in force, and those of the other tiers by the same reading."""
    found = dict(ceilings_by_tier(memory.reading, enabled=memory.ceilings.enabled))
    found[memory.ceilings.tier] = memory.ceilings
    return found


def _verdict(plan: LoadPlan, ceilings: Ceilings) -> TierFit:
    fit = TierFit(Verdict.NOW, ceilings.admission, binding_name(ceilings, ceilings.binding))
    match plan:
        case Admit():
            return fit
        case EvictFirst(model_ids=evict):
            return replace(fit, verdict=Verdict.AFTER_EVICTIONS, evict=evict)
        case Wait(drain=drain):
            return replace(fit, verdict=Verdict.AFTER_EVICTIONS, evict=drain)
        case Refuse(kind=kind, binding=binding) as refuse:
            never = kind is RefusalKind.MODEL_TOO_LARGE
            return replace(
                fit,
                verdict=Verdict.NEVER if never else Verdict.NOT_NOW,
                binding=binding_name(ceilings, binding),
                remedy=refusal_remedy(refuse),
            )
        case _:
            assert_never(plan)
