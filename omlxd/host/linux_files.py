"""Reads the memory files of /proc and of cgroup v2.

Sources: Documentation/admin-guide/cgroup-v2.rst and Documentation/accounting/psi.rst.
"""

from dataclasses import dataclass
from pathlib import Path

from omlxd.policy.readings import OsPressure
from omlxd.units import KiB

STALL_WARNING = 10.0
STALL_CRITICAL = 20.0
"""Percent of the last ten seconds in which tasks waited for memory: some tasks for a warning, all
tasks for critical. Both are far below the 60 % at which systemd-oomd kills (oomd.conf(5))."""


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """A group above this process that has a memory limit; in bytes."""

    path: str
    limit: int
    current: int | None
    file_cache: int
    """Its file pages on the LRU lists. The kernel reclaims them before the limit has an effect."""


def read_mounts(root: Path) -> tuple[tuple[str, str], ...]:
    """(group at the top of the mount, mount point) of each cgroup2 mount (proc(5), mountinfo).

    ``root`` is the path of the machine's ``/``. Raises OSError when /proc cannot be read.
    """
    mounts = []
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        words = fields.split()
        if kind.split()[:1] == ["cgroup2"] and len(words) >= 5:
            mounts.append((_unescape(words[3]), _unescape(words[4])))
    return tuple(mounts)


def own_groups(root: Path, mounts: tuple[tuple[str, str], ...]) -> tuple[Path, ...]:
    """Folders of the groups of this process, the innermost first; empty without cgroup v2.

    Raises OSError when /proc cannot be read.
    """
    own = _own_group((root / "proc/self/cgroup").read_text())
    if own is None or not mounts:
        return ()
    point, below = _place(own, mounts)
    folders = [root / point.lstrip("/")]
    for part in below:
        folders.append(folders[-1] / part)
    return tuple(reversed(folders))


def read_limits(groups: tuple[Path, ...]) -> tuple[GroupLimit, ...]:
    """The groups with a memory limit; groups without a limit or the controller are left out."""
    limits = []
    for group in groups:
        limit = _number(group / "memory.max")
        if limit is not None and limit > 0:
            current = _number(group / "memory.current")
            limits.append(GroupLimit(str(group), limit, current, _file_cache(group)))
    return tuple(limits)


def _own_group(text: str) -> str | None:
    for line in text.splitlines():
        if line.startswith("0::"):
            return line[3:]
    return None


def _place(own: str, mounts: tuple[tuple[str, str], ...]) -> tuple[str, tuple[str, ...]]:
    for top, point in mounts:
        below = _below(own, top)
        if below is not None:
            return point, below
    # The mount in this namespace does not contain our group, so only its top is visible.
    return mounts[0][1], ()


def _below(own: str, top: str) -> tuple[str, ...] | None:
    own_parts = [part for part in own.split("/") if part]
    top_parts = [part for part in top.split("/") if part]
    if ".." in own_parts or own_parts[: len(top_parts)] != top_parts:
        return None
    return tuple(own_parts[len(top_parts) :])


def _unescape(text: str) -> str:
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        text = text.replace(code, character)
    return text


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _file_cache(group: Path) -> int:
    try:
        text = (group / "memory.stat").read_text()
    except OSError:
        return 0
    total = 0
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "active_file") and value.isdigit():
            total += int(value)
    return total


def parse_kib_fields(text: str) -> dict[str, int]:
    """``Name:  123 kB`` lines (meminfo, status) in bytes; other lines are left out."""
    fields = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            fields[name] = int(words[0]) * KiB
    return fields


def parse_pressure(text: str) -> OsPressure | None:
    """The level in the text of a pressure-stall file; None when the text is something else."""
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
