"""Decides whether a model may be loaded now, and which models must leave first."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from omlxd.policy.ceiling import Binding, Ceilings, lowest
from omlxd.policy.eviction import choose_victims
from omlxd.policy.pressure import request_may_start
from omlxd.policy.readings import ModelView
from omlxd.policy.usage import Usage

STOPPED_REST = 5.0
"""Seconds that a model waits after the guard has stopped its load, even if it seems to fit: it may
take more than expected. The guard looks again within this time."""


@dataclass(frozen=True, slots=True)
class LoadNeed:
    """What one load needs, in bytes: its weights, and headroom for its first prefill."""

    model_id: str
    weights_bytes: int
    headroom_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.weights_bytes + self.headroom_bytes


@dataclass(frozen=True, slots=True)
class LoadContext:
    """The facts for the decision about a load.

    Attributes:
        models: all models that are loaded, being loaded or being unloaded.
        usage: the measured usage.
        reserved: bytes that are promised to loads and requests and not allocated yet.
        evicted: something was unloaded for this load. The footprint may still show it for a while.
        paused: admission of requests is paused.
        enforce: False when the guard only watches; it then refuses and evicts nothing.
        since_stopped: seconds since the guard stopped a load of it; infinite if it never did.
    """

    models: tuple[ModelView, ...]
    usage: Usage
    reserved: int = 0
    evicted: bool = False
    paused: bool = False
    enforce: bool = True
    since_stopped: float = math.inf

    @property
    def leaving(self) -> int:
        """Bytes of the models that are being unloaded."""
        return _size(model for model in self.models if model.unloading)

    @property
    def tracked(self) -> int:
        """Bytes of all models that are loaded."""
        return _size(model for model in self.models if not model.loading)

    @property
    def current(self) -> int:
        """Bytes in use: the larger one of measured and tracked bytes.

        The allocator's buffer cache does not count: it is given back before a load begins.
        """
        if self.evicted and self.usage.fresh:
            return max(self.usage.active or 0, self.tracked)
        return self.measured

    @property
    def measured(self) -> int:
        """Like ``current``, including unloaded models that the measurement still shows."""
        kept = (self.usage.bytes or 0) - (self.usage.buffer_cache or 0)
        return max(kept, self.usage.active or 0, self.tracked)


@dataclass(frozen=True, slots=True)
class Admit:
    """Load it now, with ``reserve`` bytes promised to it until they are allocated.

    ``instead_of``: what an enforcing guard would have decided; set only in monitor mode.
    """

    reserve: int
    instead_of: "EvictFirst | Wait | Refuse | None" = None


@dataclass(frozen=True, slots=True)
class EvictFirst:
    """Unload these idle models, in this order, then ask again with ``evicted``."""

    model_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """It will fit after something has ended.

    ``drain``: models that must leave to make room, idle ones first; empty when waiting is enough.
    """

    reason: str
    drain: tuple[str, ...] = ()


class RefusalKind(Enum):
    """The error code of a refusal."""

    MODEL_TOO_LARGE = "model_too_large"
    INSUFFICIENT_MEMORY = "insufficient_memory"


@dataclass(frozen=True, slots=True)
class Refuse:
    """There is no room even without all models that may leave, so a retry does not help.

    The hard mark is the one that tripped.

    Attributes:
        details: bytes by name.
        binding: the term that sets the limit.
        ceilings: the ceilings of the decision.
    """

    kind: RefusalKind
    details: Mapping[str, int]
    binding: Binding
    ceilings: Ceilings


LoadPlan = Admit | EvictFirst | Wait | Refuse


def plan_load(need: LoadNeed, context: LoadContext, ceilings: Ceilings) -> LoadPlan:
    """What to do about a load. The pool asks again after every change.

    Room is made down to the soft mark. If idle models cannot make enough room, the load is still
    admitted under the hard mark. Otherwise it waits for models in use. It is refused only if it
    does not fit on an empty machine, or on one with only the pinned models.
    """
    if not context.enforce and ceilings.enabled:
        plan = plan_load(need, replace(context, enforce=True), ceilings)
        return plan if isinstance(plan, Admit) else Admit(need.bytes, instead_of=plan)
    others = tuple(model for model in context.models if model.id != need.model_id)
    context = replace(context, models=others)
    if never_fits(need, ceilings):
        return _refuse(RefusalKind.MODEL_TOO_LARGE, need, context, ceilings)
    if context.since_stopped < STOPPED_REST and ceilings.enabled:
        return Wait("a load of it was just stopped by memory pressure")
    held = is_held(context, ceilings)
    after = context.current + context.reserved + need.bytes
    if after < ceilings.admission_soft and not held and not _still_full(need, context, ceilings):
        return Admit(need.bytes)
    excess = after - context.leaving - ceilings.admission_soft + 1
    victims = choose_victims(context.models, max(excess, int(held)))
    if not context.usage.fresh and (victims or not _fits(after, ceilings)):
        # The buffer cache counts as used while its size is unknown. This must not be the reason to
        # refuse a load or unload a model.
        return Wait("the allocator's numbers are old")
    if victims and _fits(after - context.leaving - _size(victims), ceilings):
        return EvictFirst(tuple(model.id for model in victims))
    if not victims and not context.leaving and not held and _fits(after, ceilings):
        return Admit(need.bytes)
    return _wait_or_refuse(after, need, context, ceilings)


def _still_full(need: LoadNeed, context: LoadContext, ceilings: Ceilings) -> bool:
    """Whether the models that leave to make room still fill the memory."""
    after = context.measured + context.reserved + need.bytes
    return bool(context.leaving) and not _fits(after, ceilings)


def is_held(context: LoadContext, ceilings: Ceilings) -> bool:
    """While admission is paused, a model is loaded only if no other model is loaded."""
    starts = request_may_start(
        paused=context.paused, loaded=False, idle=True, anything_loaded=bool(context.models)
    )
    return ceilings.enabled and not starts


def never_fits(need: LoadNeed, ceilings: Ceilings) -> bool:
    """Whether the model would reach the hard mark even on an empty machine.

    Such a model would be evicted as soon as it is loaded, and loaded again, without end.
    """
    return ceilings.enabled and need.bytes >= _hard(lowest(ceilings.stable_terms)[1], ceilings)


def _fits(after: int, ceilings: Ceilings) -> bool:
    """Whether usage stays below the hard mark; without a ceiling everything fits."""
    ceiling = ceilings.ceiling
    return ceiling is None or after < _hard(ceiling, ceilings)


def _hard(ceiling: int, ceilings: Ceilings) -> int:
    return int(ceiling * ceilings.hard_fraction)


def _size(models: Iterable[ModelView]) -> int:
    return sum(model.bytes for model in models)


def _wait_or_refuse(
    after: int, need: LoadNeed, context: LoadContext, ceilings: Ceilings
) -> Wait | Refuse:
    """For a load that is not possible now: Wait if a model of the pool will or may leave."""
    if context.leaving:
        return Wait("another model is being unloaded")
    if context.reserved or any(model.loading for model in context.models):
        return Wait("memory is promised to other loads")
    if _fits(after, ceilings):
        return Wait("admission is paused by memory pressure")
    over = after - _hard(ceilings.admission, ceilings) + 1
    leaving = choose_victims(context.models, over, in_use=True)
    if _fits(after - _size(leaving), ceilings):
        return Wait("models in use are in the way", tuple(model.id for model in leaving))
    return _refuse(RefusalKind.INSUFFICIENT_MEMORY, need, context, ceilings)


def _refuse(kind: RefusalKind, need: LoadNeed, context: LoadContext, ceilings: Ceilings) -> Refuse:
    alone = kind is RefusalKind.MODEL_TOO_LARGE
    binding, limit = lowest(ceilings.stable_terms if alone else ceilings.terms)
    pinned = _size(model for model in context.models if model.pinned)
    return Refuse(
        kind=kind,
        details={
            "usage_bytes": context.current,
            "estimate_bytes": need.bytes,
            "weights_bytes": need.weights_bytes,
            "headroom_bytes": need.headroom_bytes,
            "pinned_bytes": pinned,
            "limit_bytes": _hard(limit, ceilings),
            "ceiling_bytes": limit,
        },
        binding=binding,
        ceilings=ceilings,
    )
