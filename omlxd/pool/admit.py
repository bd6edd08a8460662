"""May this model be loaded now? The question, its answers, and the answer without a guard."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omlxd.errors import OmlxdError
from omlxd.pool.record import ModelRecord


@dataclass(frozen=True, slots=True)
class Admit:
    """Load it; ``reserve`` bytes are promised to it until they are allocated."""

    reserve: int


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """It fits once these have left, in this order of harm; those in use are drained first."""

    victims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done about it now; ``reason`` is for ``/status``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """It can never be loaded as things stand."""

    make_error: Callable[[], OmlxdError]


Verdict = Admit | MakeRoom | Wait | Refuse

Admission = Callable[[ModelRecord, Sequence[ModelRecord], int], Verdict]
"""(the model, all models, bytes promised to loads and not allocated yet) -> what to do."""


def admit_always(record: ModelRecord, records: Sequence[ModelRecord], promised: int) -> Verdict:
    """The answer where nothing is known of the machine's memory."""
    return Admit(reserve=record.model.weights_bytes)
