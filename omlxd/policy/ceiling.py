"""The memory ceiling and what follows from it."""

from dataclasses import dataclass, replace

from omlxd.policy.readings import MemoryReading
from omlxd.policy.terms import (
    Binding,
    DynamicFilter,
    dynamic_term,
    filter_dynamic,
    known_terms,
    lowest,
    metal_term,
    static_term,
)
from omlxd.policy.tiers import (
    HOT_CACHE_SLACK,
    MIN_CHUNK_TOKENS,
    SAFE_ZONE_RATIO,
    GuardPolicy,
    Tier,
    reserve,
)
from omlxd.policy.usage import age


@dataclass(frozen=True, slots=True)
class Limits:
    """What the schedulers plan with; swapped whole. Bytes; ``None`` where there is no limit.

    The marks and the hard limit are those of the scheduler ceiling, which is the ceiling
    less the hot-cache reservation; the abort limit is less that reservation too.
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
    """Every bound of one reading under one policy; bytes, ``None`` where there is no bound."""

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
        """Enforcement, and refusing a load. None when the guard is off."""
        if not self.enabled:
            return None
        # Without ``terms``: this is asked a dozen times a look.
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
        """Evicting before a load: it works without the guard too, which then never refuses."""
        ceiling = self.ceiling
        return self.static if ceiling is None else ceiling

    @property
    def admission_soft(self) -> int:
        """What evicting before a load aims at."""
        return int(self.admission * self.soft_fraction)

    @property
    def residency(self) -> int | None:
        """Where weights may live; without the dynamic term it holds still after an unload."""
        if not self.enabled:
            return None
        return self.static if self.device_cap is None else min(self.static, self.device_cap)

    @property
    def abort_limit(self) -> int | None:
        """Stopping a running prefill; the dynamic term jitters, so it is left out."""
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
        """The terms on an otherwise empty machine: what other apps take now is left out."""
        own = self.dynamic if self.tier is Tier.CUSTOM else None
        return known_terms(self.static, own, self.metal)

    def limits(self, policy: GuardPolicy, *, paused: bool) -> Limits:
        """What is handed to the schedulers; without effect when the guard only watches."""
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
    """(every bound that follows from this one reading, next filter)."""
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


def renumber(old: Limits, new: Limits) -> Limits:
    """``old`` itself when nothing changed, else ``new`` under the next generation number."""
    same = replace(new, generation=old.generation)
    return old if same == old else replace(new, generation=old.generation + 1)
