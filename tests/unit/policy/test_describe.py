from dataclasses import asdict, replace

from omlxd.policy.describe import guard_status
from omlxd.policy.relief import GuardState, decide
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.units import GiB
from tests.unit.policy.scene import CEILING, HARD, POLICY, SOFT, snapshot

KEYS = """enabled, memory_guard_tier, memory_guard_custom_ceiling_bytes,
ceiling_bytes, static_ceiling_bytes, dynamic_ceiling_bytes, metal_cap_bytes, metal_cap_raw_bytes,
reserve_bytes, other_app_reclaim_ratio, hot_cache_reserved_bytes, scheduler_ceiling_bytes,
scheduler_abort_limit_bytes, soft_threshold, hard_threshold, soft_bytes, hard_bytes, current_bytes,
pressure_level, utilization, poll_interval_seconds"""

TWINS = """ceiling, static_ceiling, dynamic_ceiling, reserve, hot_cache_reserved,
scheduler_ceiling, scheduler_abort_limit, soft, hard, current"""


def words(text: str) -> set[str]:
    return {word.strip() for word in text.replace("\n", " ").split(",")}


def test_the_status_has_the_keys_that_clients_know() -> None:
    decision = decide(GuardState(), snapshot(SOFT), POLICY)
    status = guard_status(decision, POLICY, poll_interval=1.0, running=True)
    assert set(asdict(status)) == words(KEYS)
    assert set(status.formatted()) == {f"{name}_formatted" for name in words(TWINS)}
    assert status.formatted()["ceiling_formatted"] == "100.0GB"
    assert (status.ceiling_bytes, status.soft_bytes, status.hard_bytes) == (CEILING, SOFT, HARD)
    assert (status.current_bytes, status.utilization) == (SOFT, 0.9)
    assert (status.pressure_level, status.poll_interval_seconds) == ("soft", 1.0)
    assert (status.memory_guard_tier, status.enabled) == ("custom", True)


def test_what_is_off_or_unknown_is_a_zero_here() -> None:
    """always numbers or strings as in the reference (0 where it is off or unknown, utilization 0.0
    without a ceiling); enabled is true when the guard is on and its loop runs"""
    off = replace(POLICY, enabled=False, custom_ceiling_bytes=None)
    decision = decide(GuardState(), snapshot(GiB), off)
    status = guard_status(decision, off, poll_interval=30.0, running=True)
    assert not status.enabled
    assert (status.ceiling_bytes, status.utilization, status.dynamic_ceiling_bytes) == (0, 0.0, 0)
    assert None not in asdict(status).values()
    on = decide(GuardState(), snapshot(GiB), POLICY)
    assert not guard_status(on, POLICY, poll_interval=1.0, running=False).enabled


def test_the_ratio_is_the_tiers() -> None:
    policy = GuardPolicy(tier=Tier.AGGRESSIVE)
    decision = decide(GuardState(), snapshot(GiB), policy)
    status = guard_status(decision, policy, poll_interval=1.0, running=True)
    assert status.other_app_reclaim_ratio == 0.5
