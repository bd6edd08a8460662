"""The texts for marks, terms and remedies of the memory guard and of the admission of loads.

The policy decides with numbers only. Clients, logs and the doctor read the texts made here.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, assert_never

from omlxd.policy.admission import RefusalKind, Refuse
from omlxd.policy.ceiling import Binding, Ceilings
from omlxd.policy.memory_state import MemoryState
from omlxd.policy.pressure import Level, Pause, resume_mark
from omlxd.policy.tiers import WIRED_ADVICE_SHARE, Tier
from omlxd.units import MiB, format_bytes


class Mark(Enum):
    """The mark that usage has reached; for RESUME, the mark below which usage must fall."""

    SOFT = "soft"
    HARD = "hard"
    CEILING = "ceiling"
    RESUME = "resume"
    OS_PRESSURE = "os_pressure"


def mark_of(pause: Pause) -> Mark:
    """The mark that new requests wait for."""
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
    """The details of an error: bytes, or None when the number is unknown or does not exist.

    ``estimate``: the need of the request or the load.
    """
    system = mark is Mark.OS_PRESSURE
    return {
        "usage_bytes": usage,
        "estimate_bytes": estimate,
        "limit_bytes": _limit(mark, ceilings),
        "mark": mark.value,
        "ceiling_bytes": ceilings.ceiling,
        "binding": mark.value if system else binding_name(ceilings, ceilings.binding),
        # A higher ceiling does not help when other programs use up the memory.
        "remedy": "Close other apps or unload models."
        if system
        else remedy(ceilings, ceilings.binding),
    }


def pressure(memory: MemoryState) -> dict[str, Any]:
    """The ``shortage`` for which requests wait or end. Requests have no estimate yet."""
    if memory.emergency:
        mark = Mark.CEILING
    elif memory.level is Level.HARD:
        mark = Mark.HARD
    else:
        mark = Mark.SOFT if memory.pause is None else mark_of(memory.pause)
    return shortage(mark, memory.usage.bytes, None, memory.ceilings)


def in_words(details: Mapping[str, Any]) -> str:
    """The details of ``shortage`` as sentences."""
    usage, limit, term = details["usage_bytes"], details["limit_bytes"], details["binding"]
    used = "An unknown amount" if usage is None else format_bytes(usage)
    by = f", set by the {term.replace('_', ' ')} limit" if term else ""
    match Mark(details["mark"]):
        case Mark.OS_PRESSURE:
            text = f"The system as a whole is critically short of memory; {used} is in use here."
        case Mark.RESUME:
            below = "the resume mark" if limit is None else format_bytes(limit)
            text = f"{used} is in use, and new requests start below {below} (the resume mark{by})."
        case mark:
            allowed = "" if limit is None else f" of {format_bytes(limit)}"
            text = f"{used}{allowed} (the {mark.value} mark{by}) is in use."
    return f"{text} {details['remedy']}".rstrip()


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


def wired_limit_advice(total: int, static: int) -> int:
    """The largest useful ``iogpu.wired_limit_mb`` in MiB: ``static``, but at most 95 %
    of RAM."""
    return min(static, int(total * WIRED_ADVICE_SHARE)) // MiB


def wired_limit_warnings(ceilings: Ceilings, kernel_limit: int | None) -> tuple[str, ...]:
    """One sentence for each way in which the wired limit is wrong for this machine.

    ``kernel_limit``: the limit that the user set in the kernel, in bytes; 0 is the default.
    """
    total, cap = ceilings.total, ceilings.device_cap
    advice = wired_limit_advice(total, ceilings.static)
    found: list[str] = []
    if cap is not None and cap < advice * MiB:
        found.append(
            f"The GPU may use {format_bytes(cap)} of {format_bytes(total)}; "
            f"'{_sysctl(advice)}' would allow {format_bytes(advice * MiB)}."
        )
    if kernel_limit and kernel_limit > total * WIRED_ADVICE_SHARE:
        found.append(
            f"iogpu.wired_limit_mb allows {format_bytes(kernel_limit)}, which leaves the system "
            f"less than 5% of its memory; '{_sysctl(advice)}' is safe."
        )
    return tuple(found)


def binding_name(ceilings: Ceilings, binding: Binding | None) -> str:
    """The binding term's name for clients: ``static``, ``dynamic``, ``custom``, ``metal_cap``,
    or empty when there is no ceiling."""
    if binding is None:
        return ""
    custom = binding is Binding.DYNAMIC and ceilings.tier is Tier.CUSTOM
    return "custom" if custom else binding.value


def remedy(ceilings: Ceilings, binding: Binding | None) -> str:
    """How to raise the term ``binding``, as a sentence; empty when there is no ceiling."""
    match binding:
        case None:
            return ""
        case Binding.DYNAMIC if ceilings.tier is Tier.CUSTOM:
            return "Raise the custom ceiling."
        case Binding.DYNAMIC:
            return f"Close other apps{_or_bolder(ceilings.tier)}."
        case Binding.METAL_CAP:
            advice = wired_limit_advice(ceilings.total, ceilings.static)
            if ceilings.device_cap is not None and ceilings.device_cap >= advice * MiB:
                return "The GPU's limit is as high as is safe: use a smaller model."
            return f"Raise the GPU's limit: {_sysctl(advice)}"
        case Binding.STATIC:
            bolder = _or_bolder(ceilings.tier).removeprefix(" or ")
            options = [bolder] if bolder else []
            options += ["a shorter context", "a smaller model"]
            text = ", ".join(options[:-1]) + " or " + options[-1]
            return (text if bolder else f"use {text}").capitalize() + "."


def refusal_remedy(plan: Refuse) -> str:
    """The remedies for a refused load, as sentences."""
    text = remedy(plan.ceilings, plan.binding)
    in_the_way = plan.kind is RefusalKind.INSUFFICIENT_MEMORY and plan.details["pinned_bytes"]
    return f"Unpin or unload a pinned model. {text}" if in_the_way else text


_BOLDER = {Tier.SAFE: Tier.BALANCED, Tier.BALANCED: Tier.AGGRESSIVE}


def _or_bolder(tier: Tier) -> str:
    bolder = _BOLDER.get(tier)
    return "" if bolder is None else f" or choose a bolder tier ('{bolder.value}')"


def _sysctl(mib: int) -> str:
    return f"sudo sysctl iogpu.wired_limit_mb={mib}"
