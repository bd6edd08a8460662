"""The texts of /proc that speak of memory, parsed."""

from omlxd.policy.readings import OsPressure
from omlxd.units import KiB

STALL_WARNING = 10.0
STALL_CRITICAL = 20.0
"""Percent of the last ten seconds lost to memory: some tasks for a warning, all of them for
critical. Our own choice, well below the 60 % at which systemd-oomd kills (oomd.conf(5))."""


def parse_kib_fields(text: str) -> dict[str, int]:
    """``Name:  123 kB`` lines (meminfo, status) as bytes; other lines are left out."""
    fields = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            fields[name] = int(words[0]) * KiB
    return fields


def parse_pressure(text: str) -> OsPressure | None:
    """A pressure-stall file (Documentation/accounting/psi.rst); None when it is none."""
    averages = {}
    for line in text.splitlines():
        words = line.split()
        for word in words[1:]:
            key, _, value = word.partition("=")
            if key == "avg10":
                averages[words[0]] = _percent(value)
    some, full = averages.get("some"), averages.get("full")
    if some is None:
        return None
    if full is not None and full >= STALL_CRITICAL:
        return OsPressure.CRITICAL
    return OsPressure.WARNING if some >= STALL_WARNING else OsPressure.NORMAL


def _percent(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
