"""May this model be loaded, and what must go first? The smallest harm that makes room."""

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
"""Seconds for which a load that the guard has stopped waits, whatever room there seems to be: it
may take more than it should. Long enough for the guard to look again, or stopped loads would follow
closely."""


@dataclass(frozen=True, slots=True)
class LoadNeed:
    """What one load will take: weights, and headroom for its first prefill; bytes."""

    model_id: str
    weights_bytes: int
    headroom_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.weights_bytes + self.headroom_bytes


@dataclass(frozen=True, slots=True)
class LoadContext:
    """The machine as a load finds it.

    Attributes:
        models: all models in memory, or on their way in or out.
        usage: measured.
        reserved: bytes promised to loads and requests that are not allocated yet.
        evicted: something was unloaded for this load, so the footprint may still show residue.
        paused: admission of requests is paused.
        enforce: False when the guard only watches; it then refuses and evicts nothing.
        since_stopped: seconds since the guard ended a load of it; infinite where it never did.
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
        """Bytes in use for this purpose: the largest of what is measured and what is tracked.

        What the allocator pools is not in the way: it is given back before a load begins.
        """
        if self.evicted and self.usage.fresh:
            return max(self.usage.active or 0, self.tracked)
        return self.measured

    @property
    def measured(self) -> int:
        """The same by all that is measured, residue of what was unloaded included."""
        kept = (self.usage.bytes or 0) - (self.usage.buffer_cache or 0)
        return max(kept, self.usage.active or 0, self.tracked)


@dataclass(frozen=True, slots=True)
class Admit:
    """Load it now, with ``reserve`` bytes promised to it until they are allocated.

    ``instead_of``: what a guard that acts would have said, where this one only watches.
    """

    reserve: int
    instead_of: "EvictFirst | Wait | Refuse | None" = None


@dataclass(frozen=True, slots=True)
class EvictFirst:
    """Unload these idle models, in this order, then ask again with ``evicted``."""

    model_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """It fits once something ends. ``drain``: models whose leaving would make room, idle ones
    first; empty when it is enough to wait."""

    reason: str
    drain: tuple[str, ...] = ()


class RefusalKind(Enum):
    """The error code of a refusal."""

    MODEL_TOO_LARGE = "model_too_large"
    INSUFFICIENT_MEMORY = "insufficient_memory"


@dataclass(frozen=True, slots=True)
class Refuse:
    """Nothing of ours that may leave could make room, so trying again soon is of no use.

    The hard mark is the one that tripped.

    Attributes:
        details: bytes by name.
        binding: the term that makes the limit what it is.
        ceilings: what the load was judged by.
    """

    kind: RefusalKind
    details: Mapping[str, int]
    binding: Binding
    ceilings: Ceilings


LoadPlan = Admit | EvictFirst | Wait | Refuse


def plan_load(need: LoadNeed, scene: LoadContext, ceilings: Ceilings) -> LoadPlan:
    """What to do about a load; asked again whenever something has changed.

    Room is made down to the soft mark. A load that nothing idle can make room for is still
    admitted under the hard mark. It waits for models in use, and is refused only when even an
    empty machine, or one with nothing but the pinned models, could not take it.
    """
    if not scene.enforce and ceilings.enabled:
        plan = plan_load(need, replace(scene, enforce=True), ceilings)
        return plan if isinstance(plan, Admit) else Admit(need.bytes, instead_of=plan)
    others = tuple(model for model in scene.models if model.id != need.model_id)
    scene = replace(scene, models=others)
    if never_fits(need, ceilings):
        return _refuse(RefusalKind.MODEL_TOO_LARGE, need, scene, ceilings)
    if scene.since_stopped < STOPPED_REST and ceilings.enabled:
        return Wait("a load of it was just stopped by memory pressure")
    held = is_held(scene, ceilings)
    after = scene.current + scene.reserved + need.bytes
    if after < ceilings.admission_soft and not held and not _still_full(need, scene, ceilings):
        return Admit(need.bytes)
    excess = after - scene.leaving - ceilings.admission_soft + 1
    victims = choose_victims(scene.models, max(excess, int(held)))
    if not scene.usage.fresh and (victims or not _fits(after, ceilings)):
        # A pool of unknown size counts as used, and nothing is refused or given up for that.
        return Wait("the allocator's numbers are old")
    if victims and _fits(after - scene.leaving - _size(victims), ceilings):
        return EvictFirst(tuple(model.id for model in victims))
    if not victims and not scene.leaving and not held and _fits(after, ceilings):
        return Admit(need.bytes)
    return _wait_or_refuse(after, need, scene, ceilings)


def _still_full(need: LoadNeed, scene: LoadContext, ceilings: Ceilings) -> bool:
    """What makes room is still there: not yet the time to take the rest for residue."""
    after = scene.measured + scene.reserved + need.bytes
    return bool(scene.leaving) and not _fits(after, ceilings)


def is_held(scene: LoadContext, ceilings: Ceilings) -> bool:
    """While admission is paused, a model is loaded only into a machine with nothing loaded."""
    starts = request_may_start(
        paused=scene.paused, loaded=False, idle=True, anything_loaded=bool(scene.models)
    )
    return ceilings.enabled and not starts


def never_fits(need: LoadNeed, ceilings: Ceilings) -> bool:
    """Whether the model alone would reach the hard mark, whatever other apps do.

    Such a model would be evicted as soon as it is loaded, and loaded again, without end.
    """
    return ceilings.enabled and need.bytes >= _hard(lowest(ceilings.stable_terms)[1], ceilings)


def _fits(after: int, ceilings: Ceilings) -> bool:
    """Below the hard mark; without a ceiling nothing is refused."""
    ceiling = ceilings.ceiling
    return ceiling is None or after < _hard(ceiling, ceilings)


def _hard(ceiling: int, ceilings: Ceilings) -> int:
    return int(ceiling * ceilings.hard_fraction)


def _size(models: Iterable[ModelView]) -> int:
    return sum(model.bytes for model in models)


def _wait_or_refuse(
    after: int, need: LoadNeed, scene: LoadContext, ceilings: Ceilings
) -> Wait | Refuse:
    """It may not be loaded now. Waiting makes sense while something of ours will or may leave."""
    if scene.leaving:
        return Wait("another model is being unloaded")
    if scene.reserved or any(model.loading for model in scene.models):
        return Wait("memory is promised to other loads")
    if _fits(after, ceilings):
        return Wait("admission is paused by memory pressure")
    over = after - _hard(ceilings.admission, ceilings) + 1
    leaving = choose_victims(scene.models, over, in_use=True)
    if _fits(after - _size(leaving), ceilings):
        return Wait("models in use are in the way", tuple(model.id for model in leaving))
    return _refuse(RefusalKind.INSUFFICIENT_MEMORY, need, scene, ceilings)


def _refuse(kind: RefusalKind, need: LoadNeed, scene: LoadContext, ceilings: Ceilings) -> Refuse:
    alone = kind is RefusalKind.MODEL_TOO_LARGE
    binding, limit = lowest(ceilings.stable_terms if alone else ceilings.terms)
    pinned = _size(model for model in scene.models if model.pinned)
    return Refuse(
        kind=kind,
        details={
            "usage_bytes": scene.current,
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
