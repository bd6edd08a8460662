"""Decodes the structures that the Darwin kernel fills, according to the revision it reports.

Offsets and counts: xnu-8796 to 11417 and the host.c of macOS 26 (osfmk/mach/vm_statistics.h,
osfmk/mach/task_info.h, bsd/sys/resource.h, bsd/sys/sysctl.h). Counts are 32-bit words.
"""

import struct
from dataclasses import dataclass

HOST_VM_INFO64 = 4
HOST_VM_REV0_WORDS = 24
HOST_VM_REV1_WORDS = 38
"""Every release since 10.9 knows this count; macOS 26 also knows 40 and 62. When asked for more
words than it knows, a kernel logs a bug of the caller."""

TASK_VM_INFO = 22
TASK_VM_REV1_WORDS = 38
TASK_VM_REV3_WORDS = 84
TASK_VM_REV4_WORDS = 86
"""macOS 13 and 14 know 89, later ones 93."""

RUSAGE_V0, RUSAGE_V0_BYTES = 0, 96
RUSAGE_V4, RUSAGE_V4_BYTES = 4, 296

SWAP_USAGE_BYTES = 32

# task_vm_info is declared under pragma pack(4). These offsets include it (sizeof 372, not 376).
_TASK_PHYS_FOOTPRINT = 144
_TASK_GRAPHICS_FOOTPRINT = 272
_RUSAGE_PHYS_FOOTPRINT = 72
_SWAP_USED = 16


@dataclass(frozen=True, slots=True)
class Failed:
    """A call that returned nothing usable."""

    call: str
    why: str

    def __str__(self) -> str:
        return f"{self.call}: {self.why}"


@dataclass(frozen=True, slots=True)
class Filled:
    """The array that the kernel filled: its first ``words`` 32-bit words, nothing after them."""

    data: bytes
    words: int


@dataclass(frozen=True, slots=True)
class VmCounters:
    """Host-wide memory in bytes. ``free``, ``active`` and ``inactive`` have no page in common."""

    free: int
    """Free and speculative pages. The kernel's free_count is their sum: it can reuse a speculative
    page (clean read-ahead) as easily as a free one."""
    active: int
    inactive: int
    wired: int | None
    """Includes throttled pages."""
    external: int | None
    """File-backed pages on the active and inactive queues. The kernel's external_page_count also
    has the speculative pages (vm_page_speculate), which ``free`` already has. They are subtracted
    here; else ``free + inactive + max(0, external - inactive)`` would count them twice."""
    compressor: int | None


def decode_vm_counters(filled: Filled, page_size: int) -> VmCounters | Failed:
    """``struct vm_statistics64``; ``external`` and ``compressor`` need REV1.

    Sources: osfmk/kern/host.c vm_stats(), osfmk/vm/vm_resident.c vm_page_speculate().
    """
    if filled.words < HOST_VM_REV0_WORDS:
        return Failed("host_statistics64", f"only {filled.words} words filled")
    free, active, inactive, wired = struct.unpack_from("<4I", filled.data, 0)
    (speculative,) = struct.unpack_from("<I", filled.data, 92)
    if free + active + inactive + wired == 0:
        # The kernel's cache for rate-limited callers holds zeros at first.
        return Failed("host_statistics64", "an empty answer")
    external = compressor = None
    if filled.words >= HOST_VM_REV1_WORDS:
        compressor_pages, _throttled, external_pages = struct.unpack_from("<3I", filled.data, 128)
        external = max(0, external_pages - speculative) * page_size
        compressor = compressor_pages * page_size
    return VmCounters(
        free=free * page_size,
        active=active * page_size,
        inactive=inactive * page_size,
        wired=wired * page_size,
        external=external,
        compressor=compressor,
    )


def decode_task_footprint(filled: Filled) -> int | None:
    """phys_footprint of ``struct task_vm_info``; None before its REV1."""
    if filled.words < TASK_VM_REV1_WORDS:
        return None
    (footprint,) = struct.unpack_from("<Q", filled.data, _TASK_PHYS_FOOTPRINT)
    return int(footprint) or None


def decode_graphics_footprint(filled: Filled) -> int | None:
    """Resident bytes charged to this process with the graphics tag; None before REV3.

    Also None for zero or less. A process without graphics memory has zero, but so has every process
    of a kernel that charges Metal buffers elsewhere. If the guard trusted that zero, it would count
    the whole footprint as CPU memory and raise the Metal ceiling by it.
    """
    if filled.words < TASK_VM_REV3_WORDS:
        return None
    (graphics,) = struct.unpack_from("<q", filled.data, _TASK_GRAPHICS_FOOTPRINT)
    return int(graphics) if graphics > 0 else None


def decode_rusage_footprint(data: bytes) -> int:
    """phys_footprint of any ``rusage_info`` flavor (all share V0 as their prefix)."""
    (footprint,) = struct.unpack_from("<Q", data, _RUSAGE_PHYS_FOOTPRINT)
    return int(footprint)


def decode_swap_used(data: bytes) -> int:
    """The used bytes in ``struct xsw_usage``."""
    (used,) = struct.unpack_from("<Q", data, _SWAP_USED)
    return int(used)


def decode_integer(data: bytes) -> int | None:
    """An integer sysctl of 4 (signed) or 8 bytes; None for any other size."""
    match len(data):
        case 4:
            return int.from_bytes(data, "little", signed=True)
        case 8:
            return int.from_bytes(data, "little")
        case _:
            return None
