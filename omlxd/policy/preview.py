"""What the ceiling would be now under each tier."""

from collections.abc import Mapping
from dataclasses import dataclass

from omlxd.policy.ceiling import (
    dynamic_term,
    file_cache,
    known_terms,
    lowest,
    metal_term,
    pushed_apps,
    static_term,
)
from omlxd.policy.readings import MemoryReading
from omlxd.policy.tiers import Tier, reserve
from omlxd.policy.usage import recent


@dataclass(frozen=True, slots=True)
class TierPreview:
    """One tier's ceiling, unfiltered; the field names are those a client reads."""

    reserve_bytes: int
    free_bytes: int | None
    inactive_bytes: int | None
    """The active file cache included."""
    other_apps_bytes: int
    """What the tier counts on pushing into the compressor."""
    static_bytes: int
    dynamic_bytes: int | None
    """None for the custom tier, which has no computed term."""
    metal_cap_bytes: int | None
    ceiling_bytes: int
    binding: str


def tier_preview(reading: MemoryReading, now: float) -> Mapping[Tier, TierPreview]:
    """A preview for each of the four tiers."""
    return {tier: _preview(reading, tier, now) for tier in Tier}


def _preview(reading: MemoryReading, tier: Tier, now: float) -> TierPreview:
    static = static_term(reading.total, tier)
    dynamic = None if tier is Tier.CUSTOM else dynamic_term(reading, tier, now)
    metal = metal_term(reading, now)
    binding, ceiling = lowest(known_terms(static, dynamic, metal))
    inactive = recent(reading, "inactive", now)
    external = recent(reading, "external", now) or 0
    return TierPreview(
        reserve_bytes=reserve(tier, reading.total),
        free_bytes=recent(reading, "free", now),
        inactive_bytes=None if inactive is None else inactive + file_cache(inactive, external),
        other_apps_bytes=pushed_apps(reading, tier, now),
        static_bytes=static,
        dynamic_bytes=dynamic,
        metal_cap_bytes=metal,
        ceiling_bytes=ceiling,
        binding=binding.value,
    )
