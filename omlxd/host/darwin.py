"""Memory readings of a Mac."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from omlxd.host.darwin_calls import LIBSYSTEM, DarwinKernel
from omlxd.host.darwin_structs import (
    RUSAGE_V0,
    RUSAGE_V0_BYTES,
    RUSAGE_V4,
    RUSAGE_V4_BYTES,
    SWAP_USAGE_BYTES,
    Failed,
    Filled,
    VmCounters,
    decode_graphics_footprint,
    decode_integer,
    decode_rusage_footprint,
    decode_swap_used,
    decode_task_footprint,
    decode_vm_counters,
)
from omlxd.host.protocol import RuntimeMemory
from omlxd.host.reading_builder import ReadingBuilder, physical_memory, psutil_available
from omlxd.policy.readings import MemoryReading, OsPressure
from omlxd.units import MiB

HOST_CALL_INTERVAL = 1.0
"""Seconds between two host-wide calls. The kernel answers 2 to 10 a second from all third-party
processes together; further ones get a copy (osfmk/kern/host.c, rate_limit_host_statistics)."""

FROZEN_AFTER = 5.0
"""Seconds after which an unchanged answer is reported. A live machine always has page faults."""

_PRESSURE = {1: OsPressure.NORMAL, 2: OsPressure.WARNING, 4: OsPressure.CRITICAL}


@dataclass(frozen=True, slots=True)
class _Footprint:
    total: int | None
    graphics: int | None
    source: str = ""
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Counted:
    """The last host-wide answer, with this process's footprint at the same instant."""

    tried_at: float
    taken_at: float
    raw: bytes
    counters: VmCounters | None
    source: str
    own: _Footprint
    degraded: tuple[str, ...] = ()


class DarwinHost:
    """Reads the kernel with C calls. The first reading opens the library."""

    name = "darwin"

    def __init__(
        self,
        runtime: RuntimeMemory | None = None,
        *,
        open_kernel: Callable[[], DarwinKernel] = lambda: DarwinKernel(LIBSYSTEM),
        available: Callable[[], int | None] = psutil_available,
    ) -> None:
        self._runtime = runtime or RuntimeMemory()
        self._open_kernel = open_kernel
        self._available = available
        self._last: _Counted | None = None
        self._total: int | None = None

    @cached_property
    def _kernel(self) -> DarwinKernel:
        return self._open_kernel()

    def read(self, now: float) -> MemoryReading:
        builder = self._new_builder(now)
        own = self._own_footprint()
        for line in own.degraded:
            builder.degrade(line)
        builder.put("footprint", own.total, own.source)
        builder.put("graphics_footprint", own.graphics, "task_info ledger")
        self._put_counters(builder, now, own)
        self._put_device_cap(builder)
        self._put_pressure(builder)
        self._put_swap(builder)
        return builder.finish()

    def footprint(self) -> int | None:
        return self._own_footprint().total

    def footprints(self) -> tuple[int | None, int | None]:
        own = self._own_footprint()
        return own.total, own.graphics

    def total_memory(self) -> int:
        return self._installed() or physical_memory()

    def wired_limit(self) -> int | None:
        limit = self._integer("iogpu.wired_limit_mb")
        return None if isinstance(limit, Failed) else limit * MiB

    def release_free_memory(self) -> int | None:
        released = self._kernel.relieve_malloc()
        return None if isinstance(released, Failed) else released

    def _new_builder(self, now: float) -> ReadingBuilder:
        installed = self._installed()
        if installed is not None:
            return ReadingBuilder(now, installed, "hw.memsize")
        builder = ReadingBuilder(now, physical_memory(), "sysconf")
        builder.degrade("hw.memsize cannot be read: the total comes from sysconf")
        return builder

    def _installed(self) -> int | None:
        if self._total is None:
            size = self._integer("hw.memsize")
            self._total = None if isinstance(size, Failed) or size == 0 else size
        return self._total

    def _own_footprint(self) -> _Footprint:
        task = self._kernel.task_vm_info()
        degraded: list[str] = []
        graphics = None
        match task:
            case Filled():
                graphics = decode_graphics_footprint(task)
            case Failed():
                degraded.append(f"{task}: no graphics footprint")
        for flavor, size in ((RUSAGE_V4, RUSAGE_V4_BYTES), (RUSAGE_V0, RUSAGE_V0_BYTES)):
            usage = self._kernel.resource_usage(flavor, size)
            if not isinstance(usage, Failed) and (footprint := decode_rusage_footprint(usage)):
                return _Footprint(
                    footprint, graphics, f"proc_pid_rusage V{flavor}", tuple(degraded)
                )
        why = usage if isinstance(usage, Failed) else "proc_pid_rusage: a footprint of 0"
        by_task = decode_task_footprint(task) if isinstance(task, Filled) else None
        replaced = "unknown" if by_task is None else "taken from task_info"
        degraded.append(f"{why}: the footprint is {replaced}")
        return _Footprint(by_task, graphics, "task_info", tuple(degraded))

    def _put_counters(self, builder: ReadingBuilder, now: float, own: _Footprint) -> None:
        counted = self._last = self._count(now, own)
        for line in counted.degraded:
            builder.degrade(line)
        if now - counted.taken_at > FROZEN_AFTER:
            builder.degrade("host_statistics64 keeps giving the same answer: its numbers are old")
        if counted.counters is None:
            return
        for field in ("free", "inactive", "active", "wired", "external", "compressor"):
            value = getattr(counted.counters, field)
            builder.put(field, value, counted.source, counted.taken_at)
        builder.put("counted_footprint", counted.own.total, counted.own.source, counted.taken_at)
        builder.put("counted_graphics", counted.own.graphics, "task_info ledger", counted.taken_at)

    def _count(self, now: float, own: _Footprint) -> _Counted:
        last = self._last
        if last is not None and 0 <= now - last.tried_at < HOST_CALL_INTERVAL:
            return last
        answer = self._kernel.host_counters()
        raw = answer.data if isinstance(answer, Filled) else b""
        if last is not None and raw and raw == last.raw and now >= last.taken_at:
            # Even the fault counters are unchanged, so it is the kernel's copy for limited callers.
            return replace(last, tried_at=now)
        counters = self._decode(answer)
        if isinstance(counters, Failed):
            return self._fallback(now, own, counters)
        lines: tuple[str, ...] = ()
        if counters.external is None:
            lines = ("host_statistics64 fills an old revision: file-backed pages unknown",)
        return _Counted(now, now, raw, counters, "host_statistics64", own, lines)

    def _decode(self, answer: Filled | Failed) -> VmCounters | Failed:
        page_size = self._kernel.page_size()
        if isinstance(page_size, Failed):
            return page_size
        if isinstance(answer, Failed):
            return answer
        counters = decode_vm_counters(answer, page_size)
        if isinstance(counters, Failed):
            return counters
        parts = (counters.free, counters.active, counters.inactive, counters.wired or 0)
        if sum(parts) > 1.25 * self.total_memory():
            # A wrong page size would make memory look four times as large: the guard would not act.
            return Failed("host_statistics64", "more memory than the machine has")
        return counters

    def _fallback(self, now: float, own: _Footprint, why: Failed) -> _Counted:
        available = self._available()
        if available is None:
            line = f"{why}; psutil cannot tell either: free memory is unknown"
            return _Counted(now, now, b"", None, "", own, (line,))
        # All available memory counts as free. Other apps' memory is unknown (the guard uses 0).
        counters = VmCounters(
            free=available, active=0, inactive=0, wired=None, external=0, compressor=None
        )
        line = f"{why}: psutil's available memory counts as free"
        return _Counted(now, now, b"", counters, "psutil", own, (line,))

    def _put_device_cap(self, builder: ReadingBuilder) -> None:
        limit = self._integer("iogpu.wired_limit_mb")
        if not isinstance(limit, Failed) and limit > 0:
            builder.put("device_cap", limit * MiB, "iogpu.wired_limit_mb")
            return
        cap = self._runtime.working_set()
        builder.put("device_cap", cap, "recommended working set")
        if isinstance(limit, Failed):
            replaced = "unknown" if cap is None else "the runtime's recommended working set"
            builder.degrade(f"{limit}: the device cap is {replaced}")

    def _put_pressure(self, builder: ReadingBuilder) -> None:
        name = "kern.memorystatus_vm_pressure_level"
        level = self._integer(name)
        if isinstance(level, Failed):
            builder.degrade(f"{level}: the system's pressure level is unknown")
        elif level not in _PRESSURE:
            builder.degrade(f"{name}: level {level} is not known")
        else:
            builder.put("os_pressure", _PRESSURE[level], name)

    def _put_swap(self, builder: ReadingBuilder) -> None:
        usage = self._kernel.sysctl("vm.swapusage")
        if isinstance(usage, Failed):
            builder.degrade(f"{usage}: swap is unknown")
        elif len(usage) < SWAP_USAGE_BYTES:
            builder.degrade(f"vm.swapusage: {len(usage)} bytes: swap is unknown")
        else:
            builder.put("swap_used", decode_swap_used(usage), "vm.swapusage")

    def _integer(self, name: str) -> int | Failed:
        data = self._kernel.sysctl(name)
        if isinstance(data, Failed):
            return data
        value = decode_integer(data)
        if value is None or value < 0:
            return Failed(name, f"{len(data)} bytes, value {value}")
        return value
