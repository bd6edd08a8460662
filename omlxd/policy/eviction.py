"""Models that are asked to leave memory so that another one can be loaded."""

from dataclasses import dataclass


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
