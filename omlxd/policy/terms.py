"""The terms of the ceiling: what each part of the machine allows by itself."""

from dataclasses import dataclass
from enum import Enum

from omlxd.policy.readings import MemoryReading
from omlxd.policy.tiers import BURST, MEDIAN_SAMPLES, TIERS, Tier, reserve
from omlxd.policy.usage import recent


class Binding(Enum):
    """The term that makes the ceiling what it is."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    METAL_CAP = "metal_cap"


@dataclass(frozen=True, slots=True)
class DynamicFilter:
    """The last raw dynamic terms of one tier; a new tier starts afresh."""

    tier: Tier | None = None
    samples: tuple[int, ...] = ()
    last_at: float | None = None


def known_terms(
    static: int, dynamic: int | None, metal: int | None
) -> tuple[tuple[Binding, int], ...]:
    """The terms that are known, in the order in which a tie is decided."""
    terms = (Binding.STATIC, static), (Binding.DYNAMIC, dynamic), (Binding.METAL_CAP, metal)
    return tuple((name, size) for name, size in terms if size is not None)


def lowest(terms: tuple[tuple[Binding, int], ...]) -> tuple[Binding, int]:
    """The binding term: the smallest, the first of equals."""
    return min(terms, key=lambda term: term[1])


def static_term(total: int, tier: Tier) -> int:
    """RAM less the tier's reserve."""
    return max(0, total - reserve(tier, total))


def file_cache(inactive: int, external: int) -> int:
    """File-backed pages that are not already counted as inactive."""
    return max(0, external - inactive)


def counted_own(reading: MemoryReading, now: float) -> tuple[int, int] | None:
    """(footprint, CPU part of it) at the instant of the host counters.

    Without a graphics ledger the CPU part is the whole. None when unknown or too old.
    """
    footprint, graphics = reading.counted_footprint, reading.counted_graphics
    if footprint is None:
        footprint = recent(reading, "footprint", now)
        graphics = recent(reading, "graphics_footprint", now)
    if footprint is None:
        return None
    return footprint, footprint if graphics is None else max(0, footprint - graphics)


def pushed_apps(reading: MemoryReading, tier: Tier, now: float) -> int:
    """The share of everybody else's active memory that may go to the compressor.

    Zero where a counter it needs is unknown: the term is then what psutil would call available.
    """
    own = counted_own(reading, now)
    inactive, active = (recent(reading, name, now) for name in ("inactive", "active"))
    external = recent(reading, "external", now) or 0
    if own is None or inactive is None or active is None:
        return 0
    others = max(0, active - file_cache(inactive, external) - own[1])
    return int(TIERS[tier].reclaim_ratio * others)


def dynamic_term(reading: MemoryReading, tier: Tier, now: float) -> int | None:
    """What this process holds and could still get without harming others.

    None when footprint, free or inactive memory is unknown or too old: half a sum would be far
    too low, and an unknown number must never lower the ceiling.
    """
    own = counted_own(reading, now)
    free, inactive = (recent(reading, name, now) for name in ("free", "inactive"))
    if own is None or free is None or inactive is None:
        return None
    external = recent(reading, "external", now) or 0
    available = free + inactive + file_cache(inactive, external)
    pushed = pushed_apps(reading, tier, now)
    return max(0, own[0] + available + pushed - reserve(tier, reading.total))


def metal_term(reading: MemoryReading, now: float) -> int | None:
    """Device cap plus own CPU footprint: the cap bounds GPU memory, usage is total."""
    if reading.device_cap is None:
        return None
    footprint = recent(reading, "footprint", now)
    graphics = recent(reading, "graphics_footprint", now)
    if footprint is None or graphics is None:
        return reading.device_cap
    return reading.device_cap + max(0, footprint - graphics)


def filter_dynamic(
    kept: DynamicFilter, tier: Tier, value: int | None, at: float
) -> tuple[int | None, DynamicFilter]:
    """(median of the last three raw terms, next filter): one odd sample decides nothing.

    Samples of one burst count once. Of two samples the higher one stands, since an odd low
    one would evict. An unknown term stays unknown, and the samples before it stay.
    """
    if kept.tier is not tier:
        kept = DynamicFilter(tier)
    if value is None:
        return None, kept
    if kept.last_at is None or at - kept.last_at >= BURST:
        kept = DynamicFilter(tier, (*kept.samples, value)[-MEDIAN_SAMPLES:], at)
    ordered = sorted(kept.samples)
    return ordered[len(ordered) // 2], kept
