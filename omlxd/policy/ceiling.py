"""The memory ceiling: its terms, and all bounds that follow from it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from omlxd.policy.readings import MemoryReading
from omlxd.policy.tiers import (
    BURST,
    HOT_CACHE_SLACK,
    MEDIAN_SAMPLES,
    MIN_CHUNK_TOKENS,
    SAFE_ZONE_RATIO,
    TIERS,
    GuardPolicy,
    Tier,
    reserve,
)
from omlxd.policy.usage import age, recent


class Binding(Enum):
    """The term that sets the ceiling."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    METAL_CAP = "metal_cap"


@dataclass(frozen=True, slots=True)
class DynamicFilter:
    """The last raw dynamic terms of one tier; a new tier starts with none."""

    tier: Tier | None = None
    samples: tuple[int, ...] = ()
    last_at: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for the schedulers; always replaced as a whole. Bytes; None: no limit.

    The scheduler ceiling is the ceiling less the hot-cache reservation; the marks and the hard
    limit are made from it. The reservation is taken off the abort limit as well.
    """

    generation: int = 0
    enabled: bool = False
    tier: str = "balanced"
    soft_bytes: int | None = None
    hard_bytes: int | None = None
    hard_limit: int | None = None
    abort_limit: int | None = None
    static_bytes: int | None = None
    dynamic_bytes: int | None = None
    metal_bytes: int | None = None
    device_cap: int | None = None
    admission_paused: bool = False
    abort_margin: float = 0.93
    headroom_safety: float = 0.92
    safe_zone_ratio: float = SAFE_ZONE_RATIO
    min_chunk_tokens: int = MIN_CHUNK_TOKENS
    hot_cache_reserved: int = 0
    hot_cache_used: int = 0


@dataclass(frozen=True, slots=True)
class HotCache:
    """The RAM tier of the prefix cache: bytes it holds and bytes it may hold."""

    used: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Ceilings:
    """All bounds that follow from one reading and one policy; bytes, None: no bound."""

    enabled: bool
    tier: Tier
    total: int
    reserve: int
    static: int
    dynamic: int | None
    """Median of the last samples; the user's number for the custom tier."""
    metal: int | None
    device_cap: int | None
    soft_fraction: float
    hard_fraction: float
    hot_cache_reserved: int = 0
    hot_cache_used: int = 0

    @property
    def terms(self) -> tuple[tuple[Binding, int], ...]:
        """The known terms; the first wins a tie."""
        return known_terms(self.static, self.dynamic, self.metal)

    @property
    def ceiling(self) -> int | None:
        """For enforcement, and for refusing a load. None when the guard is off."""
        if not self.enabled:
            return None
        # ``terms`` would be slower, and this is called about twelve times a look.
        return min(s for s in (self.static, self.dynamic, self.metal) if s is not None)

    @property
    def binding(self) -> Binding | None:
        return lowest(self.terms)[0] if self.enabled else None

    @property
    def soft(self) -> int | None:
        return self._share(self.ceiling, self.soft_fraction)

    @property
    def hard(self) -> int | None:
        return self._share(self.ceiling, self.hard_fraction)

    @property
    def admission(self) -> int:
        """For evicting before a load. Without the guard models are still evicted for a load, but no
        load is refused."""
        ceiling = self.ceiling
        return self.static if ceiling is None else ceiling

    @property
    def admission_soft(self) -> int:
        """The target of evicting before a load."""
        return int(self.admission * self.soft_fraction)

    @property
    def residency(self) -> int | None:
        """How much weights may take. The dynamic term is left out, because an unload changes
        it."""
        if not self.enabled:
            return None
        return self.static if self.device_cap is None else min(self.static, self.device_cap)

    @property
    def abort_limit(self) -> int | None:
        """For stopping a running prefill. The dynamic term is left out, because it varies."""
        if not self.enabled:
            return None
        return self.static if self.metal is None else min(self.static, self.metal)

    @property
    def scheduler(self) -> int | None:
        return self._less_hot_cache(self.ceiling)

    @property
    def scheduler_abort(self) -> int | None:
        return self._less_hot_cache(self.abort_limit)

    @property
    def stable_terms(self) -> tuple[tuple[Binding, int], ...]:
        """The terms on an empty machine: without the present memory of other apps."""
        own = self.dynamic if self.tier is Tier.CUSTOM else None
        return known_terms(self.static, own, self.metal)

    def limits(self, policy: GuardPolicy, *, paused: bool) -> Limits:
        """The limits for the schedulers; without effect when the guard only watches."""
        acts = self.enabled and policy.enforce
        scheduler = self.scheduler if acts else None
        return Limits(
            enabled=acts,
            tier=self.tier.value,
            soft_bytes=self._share(scheduler, self.soft_fraction),
            hard_bytes=self._share(scheduler, self.hard_fraction),
            hard_limit=scheduler,
            abort_limit=self.scheduler_abort if acts else None,
            static_bytes=self.static,
            dynamic_bytes=self.dynamic,
            metal_bytes=self.metal,
            device_cap=self.device_cap,
            admission_paused=paused and acts,
            abort_margin=policy.constants.abort_margin,
            headroom_safety=policy.constants.headroom_safety,
            safe_zone_ratio=SAFE_ZONE_RATIO,
            min_chunk_tokens=MIN_CHUNK_TOKENS,
            hot_cache_reserved=self.hot_cache_reserved,
            hot_cache_used=self.hot_cache_used,
        )

    @staticmethod
    def _share(size: int | None, fraction: float) -> int | None:
        return None if size is None else int(size * fraction)

    def _less_hot_cache(self, size: int | None) -> int | None:
        return None if size is None else max(0, size - self.hot_cache_reserved)


def compute_ceilings(
    reading: MemoryReading,
    policy: GuardPolicy,
    kept: DynamicFilter,
    hot_cache: HotCache | None,
    now: float,
) -> tuple[Ceilings, DynamicFilter]:
    """(all bounds that follow from this reading, next filter)."""
    tier = policy.tier
    if tier is Tier.CUSTOM:
        dynamic, kept = policy.custom_ceiling_bytes, DynamicFilter(tier)
    else:
        raw = dynamic_term(reading, tier, now)
        at = now - age(reading, "free", now)
        dynamic, kept = filter_dynamic(kept, tier, raw, at)
    reserved = min(hot_cache.maximum, hot_cache.used + HOT_CACHE_SLACK) if hot_cache else 0
    return Ceilings(
        enabled=policy.enabled,
        tier=tier,
        total=reading.total,
        reserve=reserve(tier, reading.total),
        static=static_term(reading.total, tier),
        dynamic=dynamic,
        metal=metal_term(reading, now),
        device_cap=reading.device_cap,
        soft_fraction=policy.soft,
        hard_fraction=policy.hard,
        hot_cache_reserved=reserved,
        hot_cache_used=min(hot_cache.used, reserved) if hot_cache else 0,
    ), kept


def ceilings_by_tier(reading: MemoryReading, *, enabled: bool = True) -> Mapping[Tier, Ceilings]:
    """The ceilings of each tier by this reading, without a filter and with the tier's marks.

    An idle guard takes few readings, so the age of the reading does not matter.
    """
    now = reading.taken_at
    return {
        tier: compute_ceilings(
            reading, GuardPolicy(enabled=enabled, tier=tier), DynamicFilter(tier), None, now
        )[0]
        for tier in Tier
    }


def renumber(old: Limits, new: Limits) -> Limits:
    """``old`` itself when nothing has changed, else ``new`` with the next generation number."""
    same = replace(new, generation=old.generation)
    return old if same == old else replace(new, generation=old.generation + 1)


def known_terms(
    static: int, dynamic: int | None, metal: int | None
) -> tuple[tuple[Binding, int], ...]:
    """The known terms; the first wins a tie."""
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
    """(footprint, CPU part of it) at the time of the host counters.

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
    """Bytes of the active memory of other apps that may be pushed into the compressor.

    Zero when a counter is unknown; the dynamic term then uses psutil's available memory.
    """
    own = counted_own(reading, now)
    inactive, active = (recent(reading, name, now) for name in ("inactive", "active"))
    external = recent(reading, "external", now) or 0
    if own is None or inactive is None or active is None:
        return 0
    others = max(0, active - file_cache(inactive, external) - own[1])
    return int(TIERS[tier].reclaim_ratio * others)


def dynamic_term(reading: MemoryReading, tier: Tier, now: float) -> int | None:
    """The memory that this process has and could still get without harm to other apps.

    None when footprint, free or inactive memory is unknown or too old: a sum without one of them
    would be far too low, and an unknown number must never lower the ceiling.
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
    """Device cap plus own CPU footprint, because the cap limits GPU memory only and usage counts
    all memory."""
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
    """(median of the last three raw terms, next filter): one odd sample changes nothing.

    Samples of one burst count once. Of two samples the higher one counts, because an odd low one
    would evict. An unknown term stays unknown, and the samples before it are kept.
    """
    if kept.tier is not tier:
        kept = DynamicFilter(tier)
    if value is None:
        return None, kept
    if kept.last_at is None or at - kept.last_at >= BURST:
        kept = DynamicFilter(tier, (*kept.samples, value)[-MEDIAN_SAMPLES:], at)
    ordered = sorted(kept.samples)
    return ordered[len(ordered) // 2], kept
