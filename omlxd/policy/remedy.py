"""What a user can do about the term that binds, and about the kernel's wired limit."""

from omlxd.policy.ceiling import Ceilings
from omlxd.policy.terms import Binding
from omlxd.policy.tiers import WIRED_ADVICE_SHARE, Tier
from omlxd.units import MiB, format_bytes


def wired_limit_advice(total: int, static: int) -> int:
    """The largest ``iogpu.wired_limit_mb`` worth setting, in MiB: ``static``, at most 95 % of
    RAM."""
    return min(static, int(total * WIRED_ADVICE_SHARE)) // MiB


def wired_limit_warnings(ceilings: Ceilings, kernel_limit: int | None) -> tuple[str, ...]:
    """One sentence for each way in which the wired limit is wrong for this machine.

    ``kernel_limit`` is what the user gave the kernel in bytes; 0 is the driver's default.
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
    """A binding term as a client reads it: ``static``, ``dynamic``, ``custom``, ``metal_cap``,
    or empty when there is no ceiling."""
    if binding is None:
        return ""
    custom = binding is Binding.DYNAMIC and ceilings.tier is Tier.CUSTOM
    return "custom" if custom else binding.value


def remedy(ceilings: Ceilings, binding: Binding | None) -> str:
    """What moves the term ``binding``, as a sentence; empty when there is no ceiling."""
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


_BOLDER = {Tier.SAFE: Tier.BALANCED, Tier.BALANCED: Tier.AGGRESSIVE}


def _or_bolder(tier: Tier) -> str:
    bolder = _BOLDER.get(tier)
    return "" if bolder is None else f" or choose a bolder tier ('{bolder.value}')"


def _sysctl(mib: int) -> str:
    return f"sudo sysctl iogpu.wired_limit_mb={mib}"
