"""What stands between a request and memory: the mark that tripped, in numbers and in words."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, assert_never

from omlxd.policy.ceiling import Ceilings
from omlxd.policy.pressure import Pause, resume_mark
from omlxd.policy.remedy import binding_name, remedy
from omlxd.units import format_bytes


class Mark(Enum):
    """What was reached; the resume mark is one that usage has yet to fall below."""

    SOFT = "soft"
    HARD = "hard"
    CEILING = "ceiling"
    RESUME = "resume"
    OS_PRESSURE = "os_pressure"


def mark_of(pause: Pause) -> Mark:
    """The mark that holds new requests up."""
    match pause:
        case Pause.LEVEL:
            return Mark.SOFT
        case Pause.RESUMING:
            return Mark.RESUME
        case Pause.SYSTEM:
            return Mark.OS_PRESSURE
        case _:
            assert_never(pause)


def shortage(
    mark: Mark, usage: int | None, estimate: int | None, ceilings: Ceilings
) -> dict[str, Any]:
    """The facts of an error; bytes, None where unknown or where there is no such number.

    ``estimate``: what the request or the load needs.
    """
    system = mark is Mark.OS_PRESSURE
    return {
        "usage_bytes": usage,
        "estimate_bytes": estimate,
        "limit_bytes": _limit(mark, ceilings),
        "mark": mark.value,
        "ceiling_bytes": ceilings.ceiling,
        "binding": mark.value if system else binding_name(ceilings, ceilings.binding),
        # No ceiling of ours helps against what the others take.
        "remedy": "Close other apps or unload models."
        if system
        else remedy(ceilings, ceilings.binding),
    }


def in_words(facts: Mapping[str, Any]) -> str:
    """What ``shortage`` gave, as sentences."""
    usage, limit, term = facts["usage_bytes"], facts["limit_bytes"], facts["binding"]
    used = "An unknown amount" if usage is None else format_bytes(usage)
    by = f", set by the {term.replace('_', ' ')} limit" if term else ""
    match Mark(facts["mark"]):
        case Mark.OS_PRESSURE:
            text = f"The system as a whole is critically short of memory; {used} is in use here."
        case Mark.RESUME:
            below = "the resume mark" if limit is None else format_bytes(limit)
            text = f"{used} is in use, and new requests start below {below} (the resume mark{by})."
        case mark:
            allowed = "" if limit is None else f" of {format_bytes(limit)}"
            text = f"{used}{allowed} (the {mark.value} mark{by}) is in use."
    return f"{text} {facts['remedy']}".rstrip()


def _limit(mark: Mark, ceilings: Ceilings) -> int | None:
    match mark:
        case Mark.SOFT:
            return ceilings.soft
        case Mark.HARD:
            return ceilings.hard
        case Mark.CEILING:
            return ceilings.ceiling
        case Mark.RESUME:
            return resume_mark(ceilings)
        case Mark.OS_PRESSURE:
            return None
        case _:
            assert_never(mark)
