"""What a client is told when the guard holds up or ends its request."""

from typing import Any

from omlxd.errors import MemoryPressure, MemoryPressureAborted
from omlxd.policy.decision import Decision
from omlxd.policy.pressure import Level
from omlxd.policy.remedy import binding_name, remedy
from omlxd.units import format_bytes

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
    """The numbers behind it, bytes; None where unknown. ``estimate_bytes`` is None until
    requests have an estimate of their own."""
    mark, limit = _tripped(decision)
    return {
        "usage_bytes": decision.usage.bytes,
        "estimate_bytes": None,
        "limit_bytes": limit,
        "mark": mark,
        "ceiling_bytes": decision.ceiling,
        "binding": binding_name(decision.ceilings, decision.ceilings.binding),
        "remedy": remedy(decision.ceilings, decision.ceilings.binding),
    }


def _tripped(decision: Decision) -> tuple[str, int | None]:
    """(the mark that was reached, its bytes)."""
    ceilings = decision.ceilings
    if decision.emergency:
        return "ceiling", ceilings.ceiling
    match decision.level:
        case Level.HARD:
            return "hard", ceilings.hard
        case Level.SOFT | Level.OK:
            # At ok admission may still be paused: it resumes a little below the soft mark.
            return "soft", ceilings.soft


def _why(decision: Decision) -> str:
    mark, limit = _tripped(decision)
    usage = decision.usage.bytes
    used = "An unknown amount" if usage is None else format_bytes(usage)
    allowed = "" if limit is None else f" of {format_bytes(limit)}"
    term = binding_name(decision.ceilings, decision.ceilings.binding)
    by = f", set by the {term.replace('_', ' ')} limit" if term else ""
    how = remedy(decision.ceilings, decision.ceilings.binding)
    return f"{used}{allowed} (the {mark} mark{by}) is in use. {how}".rstrip()
