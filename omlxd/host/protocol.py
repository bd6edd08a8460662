"""The seam to the machine: what it says about memory, and giving unused pages back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from omlxd.policy.readings import MemoryReading


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a device that is not the machine's own (CUDA): the guarded domain, in bytes."""

    taken_at: float
    total: int
    free: int | None
    used: int | None
    """What the runtime holds there: MLX active and pool together."""


def _unknown() -> None:
    return None


@dataclass(frozen=True, slots=True)
class RuntimeMemory:
    """What only the runtime knows, asked at each reading from the reading's thread.

    Both return the device thread's last sample at once and never call the runtime themselves.
    """

    working_set: Callable[[], int | None] = _unknown
    """The runtime's recommended working set in bytes (Metal); the device cap unless the kernel
    was given one."""
    device: Callable[[], DeviceMemory | None] = _unknown
    """None where the models live in the machine's own memory."""


class Host(Protocol):
    """One caller at a time, in a thread: methods may block for some milliseconds.

    ``footprint`` and ``footprints`` are called beside the others, from the event loop.
    """

    @property
    def name(self) -> str:
        """``darwin`` or ``linux``, for reports."""

    def read(self, now: float) -> MemoryReading:
        """All numbers of this instant; ``now`` is ``clock.continuous_clock()``.

        A source that fails is ``None`` or replaced, and named in ``degraded``. Raises ValueError
        or OSError only when not even the size of the memory can be found.
        """

    def footprint(self) -> int | None:
        """The own footprint alone, now, as in a reading; a call of microseconds."""

    def footprints(self) -> tuple[int | None, int | None]:
        """The same, and the graphics part of it at that instant."""

    def total_memory(self) -> int:
        """Bytes of the guarded domain: RAM, a lower cgroup limit, or the device's memory."""

    def wired_limit(self) -> int | None:
        """The limit of GPU wired memory that the user gave the kernel, in bytes: 0 is the driver's
        default, None is unknown or no such thing on this platform."""

    def release_free_memory(self) -> int | None:
        """Give the C allocator's free pages back; bytes given back, None where it cannot."""
