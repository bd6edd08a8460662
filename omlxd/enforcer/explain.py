"""What a client is told when the guard holds up or ends its request."""

from typing import Any

from omlxd.errors import MemoryPressure, MemoryPressureAborted
from omlxd.memory_text import Mark, in_words, mark_of, shortage
from omlxd.policy.decision import Decision
from omlxd.policy.pressure import Level

RETRY_ABORTED = 10.0
RETRY_WAITED = 10.0
"""Seconds; under pressure admission is looked at every second, so this is about being polite."""


def aborted(decision: Decision) -> MemoryPressureAborted:
    """For a request that was ended while it ran."""
    text = (
        f"The request was stopped to keep the machine from running out of memory. {_why(decision)}"
    )
    return MemoryPressureAborted(text, retry_after=RETRY_ABORTED, **facts(decision))


def load_aborted(decision: Decision) -> MemoryPressureAborted:
    """For a request whose model was being loaded."""
    text = f"Loading the model was stopped: memory is short. {_why(decision)}"
    return MemoryPressureAborted(text, retry_after=RETRY_ABORTED, **facts(decision))


def waited(decision: Decision, seconds: float) -> MemoryPressure:
    """For a request that admission did not let start until its deadline."""
    text = f"The request waited {seconds:.0f} s for memory to come free. {_why(decision)}"
    return MemoryPressure(
        text, retry_after=RETRY_WAITED, waited_seconds=round(seconds, 1), **facts(decision)
    )


def facts(decision: Decision) -> dict[str, Any]:
    """The numbers behind it; the estimate is None until requests have one of their own."""
    return shortage(_tripped(decision), decision.usage.bytes, None, decision.ceilings)


def _tripped(decision: Decision) -> Mark:
    if decision.emergency:
        return Mark.CEILING
    if decision.level is Level.HARD:
        return Mark.HARD
    return Mark.SOFT if decision.pause is None else mark_of(decision.pause)


def _why(decision: Decision) -> str:
    return in_words(facts(decision))
