"""Which model gives its memory up first, and the report of one that did so for a load.

The whole rule for the victim is here, for the guard's relief and for room before a load.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from omlxd.policy.readings import ModelView


def may_leave(model: ModelView) -> bool:
    """Whether it may ever be unloaded to free memory. Models on their way in or out may not."""
    return not (model.pinned or model.loading or model.unloading)


def choose_victims(
    models: Iterable[ModelView], excess: int | None = None, *, in_use: bool = False
) -> tuple[ModelView, ...]:
    """The models to unload, in this order; all that may leave when they free less than ``excess``.

    A model that was asked to leave before is the first choice, or more and more would be asked.
    Then comes the least recently used one.

    Args:
        excess: bytes that must come free. The first model that frees so much goes alone. If there
            is none, the largest go first until it is enough. None: the first model only, for a
            caller that measures after each.
        in_use: models with requests may be chosen as well, after the idle ones. Each of them costs
            a wait, so they go in this order until it is enough.
    """
    candidates = [model for model in models if may_leave(model) and (in_use or not model.busy)]
    candidates.sort(key=lambda m: (m.busy, not m.pending_unload, m.last_used, m.id))
    if excess is None:
        return tuple(candidates[:1])
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


def choose_to_end(models: Iterable[ModelView]) -> ModelView | None:
    """The model whose requests are ended when nothing idle can leave: the least recently used.

    One that is leased without a request has nothing to end, so it comes after those that have.
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
        freed: bytes that came free; None until it has left, 0 when it stayed after all because the
            room was not needed any more.
    """

    for_model: str
    model_id: str
    bytes: int
    freed: int | None = None
