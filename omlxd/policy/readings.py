"""The state of machine, allocator and models at one instant: the only input of a decision.

Sizes are bytes; times are seconds of one clock that keeps counting while the machine
sleeps. ``None`` is unknown and never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType


class OsPressure(Enum):
    """The memory pressure that the operating system itself reports."""

    NORMAL = "normal"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Source:
    """Where one number of a reading comes from, and when it was taken."""

    name: str
    taken_at: float


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """What the machine says about memory."""

    taken_at: float
    total: int
    footprint: int | None = None
    graphics_footprint: int | None = None
    free: int | None = None
    inactive: int | None = None
    active: int | None = None
    wired: int | None = None
    external: int | None = None
    compressor: int | None = None
    device_cap: int | None = None
    os_pressure: OsPressure | None = None
    swap_used: int | None = None
    counted_footprint: int | None = None
    """Own footprint at the time of the host counters (free to compressor). They may be older than
    ``footprint``, and the dynamic term needs numbers of the same time. None: use ``footprint``."""
    counted_graphics: int | None = None
    """Graphics footprint at that time; used only together with ``counted_footprint``."""
    sources: Mapping[str, Source] = field(default_factory=lambda: MappingProxyType({}))
    """Field name -> the source of its number."""
    degraded: tuple[str, ...] = ()
    """One line for each source that failed, with its replacement; shown in ``/status``."""


@dataclass(frozen=True, slots=True)
class AllocatorSample:
    """MLX's numbers, taken on the device thread: bytes in use, bytes in its buffer cache, peak
    bytes."""

    taken_at: float
    active: int
    buffer_cache: int
    peak: int
    device_free: int | None = None
    """Free memory of a device with its own memory (CUDA); None on others, and when unknown."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model, as input of a decision."""

    id: str
    weights_bytes: int
    kv_bytes: int
    busy: bool
    """It is leased, or a request waits, runs or is still held by the device thread."""
    requests: int
    """Requests that can be ended. A lease whose complete answer only waits for its reader has
    none."""
    pinned: bool
    last_used: float
    loading: bool = False
    load_aborting: bool = False
    """It is loading, and its load was already told to stop."""
    pending_unload: bool = False
    unloading: bool = False
    """It is being unloaded: its bytes count as being freed."""
    ending: int = 0
    """Requests that are over while the device thread still holds them and uses their memory."""

    @property
    def bytes(self) -> int:
        """Weights and KV together."""
        return self.weights_bytes + self.kv_bytes
