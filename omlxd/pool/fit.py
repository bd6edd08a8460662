"""Would it fit? A model at some context and concurrency, asked of the admission itself."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

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
from omlxd.policy.memory_state import MemoryState
from omlxd.policy.tiers import Tier


class Verdict(Enum):
    NOW = "now"
    AFTER_EVICTIONS = "after_evictions"
    """Once models that may leave have left."""
    NOT_NOW = "not_now"
    """Other programs or pinned models are in the way."""
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class TierFit:
    """Under one tier; bytes. ``remedy`` for what does not fit: it moves the term ``binding``."""

    verdict: Verdict
    ceiling_bytes: int
    binding: str
    evict: tuple[str, ...] = ()
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes; None where the model's shape is not understood, and ``unknown`` says why.

    Attributes:
        weights_measured: the weights were measured when it was last loaded.
        needed_bytes: what the verdicts are about. A load is given room for a first prompt, which
            may be more than what is asked for takes.
        loaded: its weights are in memory already, and are not needed a second time.
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


def fits(need: LoadNeed, scene: LoadContext, memory: MemoryState) -> Mapping[Tier, TierFit]:
    """For each tier, by the same plan that a load would get of a guard that acts."""
    scene = replace(scene, enforce=True)
    return {
        tier: _verdict(plan_load(need, scene, ceilings), ceilings)
        for tier, ceilings in _ceilings(memory).items()
    }


def _ceilings(memory: MemoryState) -> Mapping[Tier, Ceilings]:
    """The tier in force as it is; the others from the same reading, with their own marks."""
    found = {memory.ceilings.tier: memory.ceilings}
    if memory.reading is None:
        return found
    found = {**ceilings_by_tier(memory.reading, enabled=memory.ceilings.enabled), **found}
    return {tier: found[tier] for tier in Tier}


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
