"""The memory ceiling and what follows from it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What the schedulers plan with; swapped whole. Bytes; ``None`` where there is no limit.

    The marks and the hard limit are those of the scheduler ceiling, which is the ceiling
    less the hot-cache reservation.
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
    safe_zone_ratio: float = 0.89
    min_chunk_tokens: int = 256
    hot_cache_reserved: int = 0
    hot_cache_used: int = 0
