"""Memory readings of a Linux machine, a container on it, or its CUDA device."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from omlxd.host import glibc
from omlxd.host.linux_files import (
    GroupLimit,
    own_groups,
    parse_kib_fields,
    parse_pressure,
    read_limits,
    read_mounts,
)
from omlxd.host.protocol import DeviceMemory, RuntimeMemory
from omlxd.host.reading_builder import ReadingBuilder, physical_memory, psutil_available
from omlxd.policy.readings import MemoryReading, OsPressure

_SEVERITY = (OsPressure.NORMAL, OsPressure.WARNING, OsPressure.CRITICAL)
_FOOTPRINT_FIELDS = ("RssAnon", "RssShmem", "VmSwap")


class LinuxHost:
    """Reads /proc and the cgroup files below ``root``.

    When the models are on a device, the device's numbers replace the machine's.
    """

    name = "linux"

    def __init__(
        self,
        runtime: RuntimeMemory | None = None,
        *,
        root: Path = Path("/"),
        available: Callable[[], int | None] = psutil_available,
    ) -> None:
        self._runtime = runtime or RuntimeMemory()
        self._root = root
        self._available = available

    @cached_property
    def _mounts(self) -> tuple[tuple[str, str], ...]:
        return read_mounts(self._root)

    def read(self, now: float) -> MemoryReading:
        meminfo = self._fields("proc/meminfo")
        groups = self._groups()
        device = self._runtime.device()
        if device is not None:
            builder = ReadingBuilder(now, device.total, "device")
            _put_device(builder, device)
        else:
            limits = read_limits(groups)
            total, source = _total(meminfo, limits)
            builder = ReadingBuilder(now, total, source)
            self._put_memory(builder, meminfo, limits)
            self._put_footprint(builder)
        _put_swap(builder, meminfo)
        self._put_pressure(builder, groups)
        return builder.finish()

    def footprint(self) -> int | None:
        device = self._runtime.device()
        return self._resident() if device is None else device.used

    def footprints(self) -> tuple[int | None, int | None]:
        return self.footprint(), None

    def total_memory(self) -> int:
        device = self._runtime.device()
        if device is not None:
            return device.total
        return _total(self._fields("proc/meminfo"), read_limits(self._groups()))[0]

    def wired_limit(self) -> int | None:
        return None

    def release_free_memory(self) -> int | None:
        """The bytes that ``malloc_trim`` gave back, measured by the anonymous resident set.

        The call itself only says whether it gave back anything.
        """
        before = self._fields("proc/self/status").get("RssAnon")
        if not glibc.trim():
            return None
        after = self._fields("proc/self/status").get("RssAnon")
        return None if before is None or after is None else max(0, before - after)

    def _put_memory(
        self, builder: ReadingBuilder, meminfo: dict[str, int], limits: tuple[GroupLimit, ...]
    ) -> None:
        free, source = meminfo.get("MemFree"), "/proc/meminfo"
        available = meminfo.get("MemAvailable")
        if free is None:
            free, available, source = self._available(), None, "psutil"
            replaced = "free memory is unknown" if free is None else "psutil's available as free"
            builder.degrade(f"/proc/meminfo cannot be read: {replaced}")
        elif available is None:
            builder.degrade("/proc/meminfo has no MemAvailable: reclaimable memory counts as 0")
        if free is None:
            return
        available = max(free, free if available is None else available)
        for group in limits:
            if group.current is None:
                builder.degrade(f"{group.path}/memory.current cannot be read: its use is unknown")
                continue
            room = max(0, group.limit - group.current)
            if room < free:
                free, source = room, f"cgroup {group.path}"
            available = min(available, room + group.file_cache)
        builder.put("free", free, source)
        builder.put("inactive", max(0, available - free), source)
        for field in ("active", "wired", "external", "compressor"):
            # ``inactive`` already has all reclaimable memory.
            builder.put(field, 0, source)

    def _put_footprint(self, builder: ReadingBuilder) -> None:
        footprint = self._resident()
        if footprint is None:
            builder.degrade("/proc/self/status has no RssAnon: the footprint is unknown")
        builder.put("footprint", footprint, "/proc/self/status")

    def _resident(self) -> int | None:
        status = self._fields("proc/self/status")
        if "RssAnon" not in status:
            return None
        return sum(status.get(field, 0) for field in _FOOTPRINT_FIELDS)

    def _put_pressure(self, builder: ReadingBuilder, groups: tuple[Path, ...]) -> None:
        """Set the pressure: the machine's or our own group's, whichever is worse."""
        files = [self._root / "proc/pressure/memory"]
        files += [group / "memory.pressure" for group in groups[:1]]
        found = [(level, file) for file in files if (level := _pressure(file)) is not None]
        if found:
            level, file = max(found, key=lambda pair: _SEVERITY.index(pair[0]))
            builder.put("os_pressure", level, str(file))

    def _fields(self, path: str) -> dict[str, int]:
        try:
            return parse_kib_fields((self._root / path).read_text())
        except OSError:
            return {}

    def _groups(self) -> tuple[Path, ...]:
        # The process may be moved to another group at any time; the mounts do not change.
        try:
            return own_groups(self._root, self._mounts)
        except OSError:
            return ()


def _put_device(builder: ReadingBuilder, device: DeviceMemory) -> None:
    builder.put("footprint", device.used, "device thread", device.taken_at)
    builder.put("free", device.free, "device", device.taken_at)
    if device.free is None:
        builder.degrade("the device does not say how much memory is free")
        return
    for field in ("inactive", "active", "wired", "external", "compressor"):
        builder.put(field, 0, "device", device.taken_at)


def _put_swap(builder: ReadingBuilder, meminfo: dict[str, int]) -> None:
    total, free = meminfo.get("SwapTotal"), meminfo.get("SwapFree")
    if total is None or free is None:
        builder.degrade("/proc/meminfo says nothing of swap: it is unknown")
        return
    builder.put("swap_used", max(0, total - free), "/proc/meminfo")


def _total(meminfo: dict[str, int], limits: tuple[GroupLimit, ...]) -> tuple[int, str]:
    total, source = meminfo.get("MemTotal"), "/proc/meminfo"
    if total is None:
        total, source = physical_memory(), "sysconf"
    for group in limits:
        if group.limit < total:
            total, source = group.limit, f"cgroup {group.path}"
    return total, source


def _pressure(file: Path) -> OsPressure | None:
    try:
        return parse_pressure(file.read_text())
    except OSError:
        # The file is absent, or reading it gives EOPNOTSUPP if the kernel runs without psi=1.
        return None
