"""The seam to the machine: reads its memory, and gives unused pages back."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from omlxd.errors import ConfigError
from omlxd.policy.readings import MemoryReading


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory in bytes of a device with memory of its own (CUDA). The guard watches this memory."""

    taken_at: float
    total: int
    free: int | None
    used: int | None
    """What MLX holds there: its active memory and its buffer cache."""


def _unknown() -> None:
    return None


@dataclass(frozen=True, slots=True)
class RuntimeMemory:
    """What only the runtime knows. Each reading asks for it, from the thread of the reading.

    Both return the last sample of the device thread at once and never call the runtime.
    """

    working_set: Callable[[], int | None] = _unknown
    """The recommended working set in bytes (Metal). It is the device cap, unless the user set one
    in the kernel."""
    device: Callable[[], DeviceMemory | None] = _unknown
    """None where the models are in the machine's own memory."""


class Host(Protocol):
    """One caller at a time, in a thread: methods may block for some milliseconds.

    Only ``footprint`` and ``footprints`` are also called from the event loop, at any time.
    """

    @property
    def name(self) -> str:
        """``darwin`` or ``linux``, for reports."""

    def read(self, now: float) -> MemoryReading:
        """All numbers of this instant; ``now`` is ``clock.continuous_clock()``.

        A value whose source fails is ``None`` or comes from another source; ``degraded`` names it.
        Raises ValueError or OSError only when even the size of the memory is unknown.
        """

    def footprint(self) -> int | None:
        """Only this process's footprint, as in a reading. Takes microseconds."""

    def footprints(self) -> tuple[int | None, int | None]:
        """The footprint, and its graphics part at the same instant."""

    def total_memory(self) -> int:
        """Bytes of the memory that the guard watches: RAM, a lower cgroup limit, or a device's."""

    def wired_limit(self) -> int | None:
        """The kernel's limit of wired GPU memory in bytes, as the user set it.

        0 is the driver's default; None is unknown, or there is no such limit on this platform.
        """

    def release_free_memory(self) -> int | None:
        """Give the C allocator's free pages back. Returns the bytes; None where it cannot."""


def open_host(runtime: RuntimeMemory | None = None, *, platform: str = sys.platform) -> Host:
    """The host layer of this machine. It reads nothing yet.

    Raises ConfigError on a platform without one.
    """
    match platform:
        case "darwin":
            from omlxd.host.darwin import DarwinHost

            return DarwinHost(runtime)
        case "linux":
            from omlxd.host.linux import LinuxHost

            return LinuxHost(runtime)
        case _:
            raise ConfigError([f"omlxd runs on macOS and on Linux, not on '{platform}'"])
