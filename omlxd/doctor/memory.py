"""Checks the machine's memory and the kernel's limit of what the GPU may wire."""

from collections.abc import Callable

from omlxd.doctor.finding import Finding, fail, ok, warn
from omlxd.host.protocol import Host
from omlxd.memory_text import binding_name, remedy, wired_limit_warnings
from omlxd.policy.ceiling import Ceilings, DynamicFilter, compute_ceilings
from omlxd.policy.readings import MemoryReading, OsPressure
from omlxd.policy.tiers import GuardPolicy
from omlxd.units import GiB, format_bytes

SMALL = 8 * GiB


def check_memory(open_host: Callable[[], Host], policy: GuardPolicy, now: float) -> list[Finding]:
    """``now``: of the host's clock."""
    try:
        host = open_host()
        reading = host.read(now)
    except (OSError, ValueError) as error:
        return [fail("memory", f"the machine's memory cannot be read: {error}")]
    ceilings, _ = compute_ceilings(reading, policy, DynamicFilter(policy.tier), None, now)
    return [
        memory(reading, ceilings),
        *sources(reading),
        *wired(ceilings, host.wired_limit()),
    ]


def memory(reading: MemoryReading, ceilings: Ceilings) -> Finding:
    if not ceilings.enabled:
        return warn(
            "memory",
            f"{format_bytes(reading.total)}; the memory guard is off",
            "omlxd guard set --enable",
        )
    ceiling = ceilings.admission
    text = (
        f"{format_bytes(reading.total)}, of which models may take {format_bytes(ceiling)} now "
        f"(bound: {binding_name(ceilings, ceilings.binding)}, tier {ceilings.tier.value})"
    )
    if reading.os_pressure in (OsPressure.WARNING, OsPressure.CRITICAL):
        pressure = reading.os_pressure.value
        return warn("memory", f"{text}; the system reports {pressure} pressure", "close other apps")
    if ceiling < reading.total // 4 or reading.total < SMALL:
        return warn("memory", text, remedy(ceilings, ceilings.binding) or None)
    return ok("memory", text)


def sources(reading: MemoryReading) -> list[Finding]:
    return [warn("memory sources", line) for line in reading.degraded]


def wired(ceilings: Ceilings, kernel_limit: int | None) -> list[Finding]:
    """``kernel_limit`` in bytes: 0 the driver's default, None no such thing here."""
    if kernel_limit is None and ceilings.device_cap is None:
        return []
    warnings = wired_limit_warnings(ceilings, kernel_limit)
    if warnings:
        return [warn("wired limit", text) for text in warnings]
    shown = "the driver's default" if not kernel_limit else format_bytes(kernel_limit)
    return [ok("wired limit", shown)]
