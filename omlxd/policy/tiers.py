"""All constants of the memory guard in one table, and the policy that the user sets."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from omlxd.units import GiB, MiB, format_bytes


class Tier(Enum):
    """How much of the machine the models may take."""

    SAFE = "safe"
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class TierConstants:
    """One column of the table. Fractions are of the ceiling unless said otherwise."""

    reserve_share: float
    """Share of RAM left to the machine, limited by the two bounds below."""
    reserve_low: int
    reserve_high: int
    reclaim_ratio: float
    """Share of other apps' active memory that may be pushed into the compressor."""
    soft: float
    hard: float
    headroom_safety: float
    """Target of the chunk size, as a fraction of the hard limit."""
    abort_margin: float
    """A prefill stops when the prediction for its next chunk is above this fraction of the abort
    limit."""


TIERS: Mapping[Tier, TierConstants] = MappingProxyType(
    {
        Tier.SAFE: TierConstants(0.20, 6 * GiB, 16 * GiB, 0.0, 0.85, 0.95, 0.90, 0.90),
        Tier.BALANCED: TierConstants(0.08, 3 * GiB, 8 * GiB, 0.0, 0.90, 0.95, 0.92, 0.93),
        Tier.AGGRESSIVE: TierConstants(0.02, 3 * GiB // 2, 4 * GiB, 0.5, 0.95, 0.98, 0.97, 0.97),
        Tier.CUSTOM: TierConstants(0.0, 2 * GiB, 2 * GiB, 0.0, 0.90, 0.97, 0.95, 0.95),
    }
)

SAFE_ZONE_RATIO = 0.89
MIN_CHUNK_TOKENS = 256
FULL_CHUNK_TOKENS = 2048

EMERGENCY_OVER_BYTES = 2 * GiB
EMERGENCY_OVER_POLLS = 2
BUFFER_CACHE_FLOOR = 2 * GiB
MAX_DEFERRALS = 5
HOT_CACHE_SLACK = 512 * MiB
STORE_FLUSH_LIMIT = 5.0
"""Longest wait for dirty blocks to reach the SSD, seconds."""

POLL_PRESSURE = 1.0
POLL_LOADED = 10.0
POLL_EMPTY = 30.0
HINT_MINIMUM = 2.0
BURST = POLL_PRESSURE / 2
"""Ticks closer together than half a poll under pressure count once."""

RESUME_MARGIN = 0.02
"""Admission resumes this share of the ceiling below the soft mark."""
MEDIAN_SAMPLES = 3
SAMPLE_LIMIT = 5.0
"""Seconds; an older reading or sample is not used for decisions."""
RELEASE_WINDOW = 10.0
"""Seconds over which driver-held graphics memory is compared with its own minimum."""
RELEASE_REUSE = 2.0
"""Seconds for which that result may be used again without fresh allocator numbers."""

WIRED_ADVICE_SHARE = 0.95
"""A wired limit above this share of RAM starves the system."""


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """The user's settings. None means the value of the tier (for the ceiling: no ceiling is
    set)."""

    enabled: bool = True
    enforce: bool = True
    """False is monitor mode: the same decisions are shown and logged, but not carried out."""
    tier: Tier = Tier.BALANCED
    custom_ceiling_bytes: int | None = None
    """Used by the ``custom`` tier only. It is kept while another tier is set."""
    soft_threshold: float | None = None
    hard_threshold: float | None = None

    @property
    def constants(self) -> TierConstants:
        return TIERS[self.tier]

    @property
    def soft(self) -> float:
        """Soft mark in force, a fraction of the ceiling."""
        return self.constants.soft if self.soft_threshold is None else self.soft_threshold

    @property
    def hard(self) -> float:
        """Hard mark in force, a fraction of the ceiling."""
        return self.constants.hard if self.hard_threshold is None else self.hard_threshold


def reserve(tier: Tier, total: int) -> int:
    """Bytes of ``total`` RAM that the tier leaves to the machine."""
    row = TIERS[tier]
    return min(max(int(total * row.reserve_share), row.reserve_low), row.reserve_high)


@dataclass(frozen=True, slots=True)
class Mistake:
    """One setting that cannot be used, with a sentence for the user."""

    name: str
    text: str


def mistakes(policy: GuardPolicy, changed: Collection[str] = ()) -> tuple[Mistake, ...]:
    """All mistakes in the merged, effective policy; empty if there are none.

    ``changed`` names the fields that this call (or the configuration file) sets. A custom ceiling
    with another tier is refused only when it is set now; one from earlier is kept for later.
    """
    found: list[Mistake] = []
    for check in (_range_mistakes, _order_mistakes, _ceiling_mistakes):
        found.extend(check(policy))
    if "custom_ceiling_bytes" in changed:
        found.extend(_unused_ceiling_mistakes(policy))
    return tuple(found)


def _range_mistakes(policy: GuardPolicy) -> list[Mistake]:
    return [
        Mistake(name, f"{name} is {value!r}; it must be a number above 0 and at most 1.")
        for name in ("soft_threshold", "hard_threshold")
        if (value := getattr(policy, name)) is not None and not _is_fraction(value)
    ]


def _order_mistakes(policy: GuardPolicy) -> list[Mistake]:
    if not (_is_fraction(policy.soft) and _is_fraction(policy.hard)) or policy.soft < policy.hard:
        return []
    name = "soft_threshold" if policy.soft_threshold is not None else "hard_threshold"
    return [
        Mistake(
            name,
            f"soft_threshold {_origin(policy.soft, policy.soft_threshold, policy.tier)} must be "
            f"below hard_threshold {_origin(policy.hard, policy.hard_threshold, policy.tier)}.",
        )
    ]


def _ceiling_mistakes(policy: GuardPolicy) -> list[Mistake]:
    ceiling = policy.custom_ceiling_bytes
    if ceiling is None or (math.isfinite(ceiling) and ceiling > 0):
        return []
    text = f"The custom ceiling is {ceiling!r} bytes; it must be a finite size above zero."
    return [Mistake("custom_ceiling_bytes", text)]


def _unused_ceiling_mistakes(policy: GuardPolicy) -> list[Mistake]:
    if policy.custom_ceiling_bytes is None or policy.tier is Tier.CUSTOM:
        return []
    text = (
        f"The tier is '{policy.tier.value}', which ignores a custom ceiling. "
        "Set the tier to 'custom' together with it, or leave the ceiling out."
    )
    return [Mistake("custom_ceiling_bytes", text)]


def _is_fraction(value: float) -> bool:
    return math.isfinite(value) and 0 < value <= 1


def _origin(value: float, own: float | None, tier: Tier) -> str:
    return f"{value!r}" if own is not None else f"{value!r} (the default of tier '{tier.value}')"


class ClampCause(Enum):
    """Why a custom ceiling is not, or not fully, in force."""

    RAM_RESERVE = "ram_reserve"
    METAL_CAP = "metal_cap"
    OTHER_TIER = "other_tier"


@dataclass(frozen=True, slots=True)
class Clamp:
    """A setting that another bound overrides: the wanted value, the value in force, and why."""

    name: str
    asked: int
    effective: int | None
    """Bytes in force; None when the setting has no effect at all."""
    cause: ClampCause
    text: str


def clamps(policy: GuardPolicy, static: int, metal: int | None) -> tuple[Clamp, ...]:
    """All bounds that override the custom ceiling now; each is reported to the user.

    ``static`` is the static term of the policy's tier, ``metal`` the metal term if known.
    """
    asked = policy.custom_ceiling_bytes
    if asked is None:
        return ()
    if policy.tier is not Tier.CUSTOM:
        text = f"The custom ceiling is kept for later: tier '{policy.tier.value}' does not use it."
        return (Clamp("custom_ceiling_bytes", asked, None, ClampCause.OTHER_TIER, text),)
    causes: list[tuple[ClampCause, str]] = []
    if asked > static:
        text = f"{format_bytes(asked)} is above the RAM less 2GB, {format_bytes(static)}."
        causes.append((ClampCause.RAM_RESERVE, text))
    if metal is not None and asked > metal:
        text = f"{format_bytes(asked)} is above what Metal may use, {format_bytes(metal)}."
        causes.append((ClampCause.METAL_CAP, text))
    effective = min(asked, static, asked if metal is None else metal)
    return tuple(
        Clamp("custom_ceiling_bytes", asked, effective, cause, text) for cause, text in causes
    )
