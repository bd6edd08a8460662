"""The guard's numbers under the names and in the encoding that existing clients read."""

from dataclasses import dataclass

from omlxd.policy.decision import Decision
from omlxd.policy.tiers import GuardPolicy
from omlxd.units import format_bytes

FORMATTED = (
    "ceiling",
    "static_ceiling",
    "dynamic_ceiling",
    "reserve",
    "hot_cache_reserved",
    "scheduler_ceiling",
    "scheduler_abort_limit",
    "soft",
    "hard",
    "current",
)
"""Sizes that are also given as texts: ``<name>_bytes`` has a twin ``<name>_formatted``."""


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """Always numbers or texts: zero stands for off or unknown here, and here alone."""

    enabled: bool
    memory_guard_tier: str
    memory_guard_custom_ceiling_bytes: int
    ceiling_bytes: int
    static_ceiling_bytes: int
    dynamic_ceiling_bytes: int
    metal_cap_bytes: int
    metal_cap_raw_bytes: int
    reserve_bytes: int
    other_app_reclaim_ratio: float
    hot_cache_reserved_bytes: int
    scheduler_ceiling_bytes: int
    scheduler_abort_limit_bytes: int
    soft_threshold: float
    hard_threshold: float
    soft_bytes: int
    hard_bytes: int
    current_bytes: int
    pressure_level: str
    utilization: float
    poll_interval_seconds: float

    def formatted(self) -> dict[str, str]:
        """The ``*_formatted`` twins, such as ``"12.3GB"``."""
        return {
            f"{name}_formatted": format_bytes(getattr(self, f"{name}_bytes")) for name in FORMATTED
        }


def guard_status(
    decision: Decision, policy: GuardPolicy, *, poll_interval: float, running: bool
) -> GuardStatus:
    """The status after ``decision``; ``running`` says whether the guard's loop is alive."""
    ceilings, usage = decision.ceilings, decision.usage.bytes or 0
    ceiling = ceilings.ceiling
    return GuardStatus(
        enabled=policy.enabled and running,
        memory_guard_tier=policy.tier.value,
        memory_guard_custom_ceiling_bytes=policy.custom_ceiling_bytes or 0,
        ceiling_bytes=ceiling or 0,
        static_ceiling_bytes=ceilings.static,
        dynamic_ceiling_bytes=ceilings.dynamic or 0,
        metal_cap_bytes=ceilings.metal or 0,
        metal_cap_raw_bytes=ceilings.device_cap or 0,
        reserve_bytes=ceilings.reserve,
        other_app_reclaim_ratio=policy.constants.reclaim_ratio,
        hot_cache_reserved_bytes=ceilings.hot_cache_reserved,
        scheduler_ceiling_bytes=ceilings.scheduler or 0,
        scheduler_abort_limit_bytes=ceilings.scheduler_abort or 0,
        soft_threshold=policy.soft,
        hard_threshold=policy.hard,
        soft_bytes=ceilings.soft or 0,
        hard_bytes=ceilings.hard or 0,
        current_bytes=usage,
        pressure_level=decision.level.label,
        utilization=usage / ceiling if ceiling else 0.0,
        poll_interval_seconds=poll_interval,
    )
