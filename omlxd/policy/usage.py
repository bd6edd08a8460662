"""The daemon's memory usage, by its footprint and the allocator, without old numbers."""

from dataclasses import dataclass

from omlxd.policy.readings import AllocatorSample, MemoryReading, OsPressure
from omlxd.policy.tiers import RELEASE_REUSE, RELEASE_WINDOW, SAMPLE_LIMIT


@dataclass(frozen=True, slots=True)
class ReleaseWindow:
    """Graphics memory beyond the allocator's own numbers during the last ten seconds."""

    excess: tuple[tuple[float, int], ...] = ()
    """(time, bytes), both ascending. A sample larger than a later one can never be the minimum, so
    it is not kept."""
    result: tuple[float, int] | None = None
    """(time, bytes) of the last result from fresh numbers."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes in use and their parts; ``bytes`` is None when nothing could be read."""

    bytes: int | None
    active: int | None
    buffer_cache: int | None
    footprint: int | None
    unreleased: int = 0
    """Graphics memory that the allocator has freed and the driver still holds."""

    @property
    def fresh(self) -> bool:
        """Whether the allocator's numbers are recent enough to act on."""
        return self.active is not None


def age(reading: MemoryReading, name: str, now: float) -> float:
    """Seconds since the number called ``name`` was taken."""
    source = reading.sources.get(name)
    return now - (reading.taken_at if source is None else source.taken_at)


def recent(reading: MemoryReading, name: str, now: float) -> int | None:
    """The number called ``name``, or None when it is unknown or too old to decide on."""
    value: int | None = getattr(reading, name)
    return value if age(reading, name, now) <= SAMPLE_LIMIT else None


def recent_pressure(reading: MemoryReading, now: float) -> OsPressure | None:
    """The pressure that the system reports, or None when it is unknown or too old to decide on."""
    return reading.os_pressure if age(reading, "os_pressure", now) <= SAMPLE_LIMIT else None


def fresh_sample(sample: AllocatorSample | None, now: float) -> AllocatorSample | None:
    """The sample, or None when it is too old for decisions."""
    return sample if sample is not None and now - sample.taken_at <= SAMPLE_LIMIT else None


def unreleased(
    window: ReleaseWindow, graphics: int | None, sample: AllocatorSample | None, now: float
) -> tuple[int, ReleaseWindow]:
    """(bytes that the allocator has freed and the driver still holds, next window).

    It is the graphics footprint less active bytes and buffer cache, less the minimum of this
    difference over the window, because a part is always there. ``sample`` must be fresh or None.
    """
    if graphics is None:
        return 0, ReleaseWindow()
    if sample is None:
        kept = window.result
        reuse = kept[1] if kept is not None and now - kept[0] <= RELEASE_REUSE else 0
        return reuse, window
    excess = graphics - (sample.active + sample.buffer_cache)
    kept_samples = tuple(
        (at, size) for at, size in window.excess if now - at <= RELEASE_WINDOW and size < excess
    )
    samples = (*kept_samples, (now, excess))
    held = max(0, excess - samples[0][1])
    return held, ReleaseWindow(samples, (now, held))


def measure_usage(
    reading: MemoryReading, sample: AllocatorSample | None, window: ReleaseWindow, now: float
) -> tuple[Usage, ReleaseWindow]:
    """(usage, next window). Usage is the larger one of the active bytes, and the footprint less the
    freed memory that the driver still holds."""
    fresh = fresh_sample(sample, now)
    footprint = recent(reading, "footprint", now)
    graphics = recent(reading, "graphics_footprint", now)
    held, window = unreleased(window, graphics, fresh, now)
    active = None if fresh is None else fresh.active
    own = None if footprint is None else max(0, footprint - held)
    known = [size for size in (active, own) if size is not None]
    return Usage(
        bytes=max(known) if known else None,
        active=active,
        buffer_cache=None if fresh is None else fresh.buffer_cache,
        footprint=footprint,
        unreleased=held,
    ), window
