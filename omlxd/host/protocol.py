"""The interface to the machine: reads its memory, and gives unused pages back."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from omlxd.errors import ConfigError
from omlxd.policy.readings import MemoryReading


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory in bytes of a device with its own memory (CUDA). The guard watches this memory."""

    taken_at: float
    total: int
    free: int | None
    used: int | None
    """MLX's memory on the device: its active memory and its buffer cache."""


def _unknown() -> None:
    return None


@dataclass(frozen=True, slots=True)
class RuntimeMemory:
    """Values that only the runtime knows. Each reading calls both functions, in its own thread.

    Both return the last sample of the device thread at once and never call the runtime.
    """

    working_set: Callable[[], int | None] = _unknown
    """The recommended working set in bytes (Metal). It is the device cap, unless the user set a cap
    in the kernel."""
    device: Callable[[], DeviceMemory | None] = _unknown
    """None when the models are in the machine's own memory."""


class Host(Protocol):
    """One caller at a time, in a thread: methods may block for some milliseconds.

    Only ``footprint`` and ``footprints`` are also called from the event loop, at any time.
    """

    @property
    def name(self) -> str:
        """``darwin`` or ``linux``, for reports."""

    def read(self, now: float) -> MemoryReading:
        """All numbers at this instant; ``now`` is ``clock.continuous_clock()``.

        When a source fails, its value is ``None`` or comes from another source, and ``degraded``
        names it. Raises ValueError or OSError only when the size of the memory is unknown too.
        """

    def footprint(self) -> int | None:
        """Only this process's footprint, the same as in a reading. Takes microseconds."""

    def footprints(self) -> tuple[int | None, int | None]:
        """The footprint, and its graphics part at the same instant."""

    def total_memory(self) -> int:
        """Bytes of the memory that the guard watches: RAM, a lower cgroup limit, or a device's."""

    def wired_limit(self) -> int | None:
        """The limit of wired GPU memory that the user set in the kernel, in bytes.

        0 is the driver's default; None is unknown, or this platform has no such limit.
        """

    def release_free_memory(self) -> int | None:
        """Give the C allocator's free pages back. Returns the bytes; None when it cannot."""


def open_host(runtime: RuntimeMemory | None = None, *, platform: str = sys.platform) -> Host:
    """The host layer of this machine. Opening it reads nothing.

    Raises ConfigError on a platform without a host layer.
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
