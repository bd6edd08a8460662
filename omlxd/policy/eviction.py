"""Which model is unloaded first, and the report of a model that was unloaded for a load.

The complete rule for the victim is here, for the guard's relief and for room before a load.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from omlxd.policy.readings import ModelView

WHY_FIRST = "is the least recently used idle one"
"""Why ``choose_victims`` takes its first choice; the guard's reason quotes it."""


def may_leave(model: ModelView) -> bool:
    """Whether it may be unloaded to free memory. Models that are loading or unloading may not."""
    return not (model.pinned or model.loading or model.unloading)


def choose_victims(
    models: Iterable[ModelView], excess: int | None = None, *, in_use: bool = False
) -> tuple[ModelView, ...]:
    """The models to unload, in order; all that may leave if these free less than ``excess``.

    A model that was already asked to leave is the first choice; otherwise more and more models
    would be asked. Then comes the least recently used one.

    Args:
        excess: bytes that must come free. The first model that frees so much goes alone. If there
            is none, the largest go first until it is enough. None: the first model only, for a
            caller that measures after each model.
        in_use: models with requests may also be chosen, after the idle ones. Each of them costs
            a wait, so they go in this order until it is enough.
    """
    candidates = [model for model in models if may_leave(model) and (in_use or not model.busy)]
    if excess is None:
        return (min(candidates, key=_order),) if candidates else ()
    candidates.sort(key=_order)
    if excess > 0 and not in_use:
        for model in candidates:
            if model.bytes >= excess:
                return (model,)
        candidates.sort(key=lambda model: -model.bytes)
    chosen: list[ModelView] = []
    for model in candidates:
        if excess <= 0:
            break
        chosen.append(model)
        excess -= model.bytes
    return tuple(chosen)


def _order(model: ModelView) -> tuple[bool, bool, float, str]:
    return (model.busy, not model.pending_unload, model.last_used, model.id)


def choose_to_end(models: Iterable[ModelView]) -> ModelView | None:
    """The model whose requests are ended when nothing idle can leave: the least recently used.

    A leased model without a request has nothing to end, so it comes after models with requests.
    """
    busy = [model for model in models if may_leave(model) and model.busy]
    return min(busy, key=lambda m: (not m.requests, m.last_used, m.id), default=None)


@dataclass(frozen=True, slots=True)
class Eviction:
    """One model that makes room for the load of another.

    Attributes:
        for_model: the model that needs the room.
        model_id: the model that was asked to leave.
        bytes: weights and KV that should come free.
        freed: bytes that came free; None until it has left, 0 if it stayed because the room was
            not needed any more.
    """

    for_model: str
    model_id: str
    bytes: int
    freed: int | None = None
