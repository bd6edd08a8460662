from dataclasses import replace
from typing import Any

import pytest

from omlxd.policy.tiers import (
    BUFFER_CACHE_FLOOR,
    EMERGENCY_OVER_BYTES,
    EMERGENCY_OVER_POLLS,
    FULL_CHUNK_TOKENS,
    HINT_MINIMUM,
    HOT_CACHE_SLACK,
    MAX_DEFERRALS,
    MIN_CHUNK_TOKENS,
    POLL_EMPTY,
    POLL_LOADED,
    POLL_PRESSURE,
    SAFE_ZONE_RATIO,
    STORE_FLUSH_LIMIT,
    TIERS,
    ClampCause,
    GuardPolicy,
    Tier,
    clamps,
    mistakes,
    reserve,
)
from omlxd.units import GiB, MiB


@pytest.mark.parametrize(
    ("tier", "total_gib", "reserve_gib"),
    [
        (Tier.SAFE, 16, 6.0),
        (Tier.SAFE, 64, 12.8),
        (Tier.SAFE, 512, 16.0),
        (Tier.BALANCED, 16, 3.0),
        (Tier.BALANCED, 64, 5.12),
        (Tier.BALANCED, 512, 8.0),
        (Tier.AGGRESSIVE, 16, 1.5),
        (Tier.AGGRESSIVE, 128, 2.56),
        (Tier.AGGRESSIVE, 512, 4.0),
        (Tier.CUSTOM, 8, 2.0),
        (Tier.CUSTOM, 512, 2.0),
    ],
)
def test_each_tier_leaves_its_share_of_ram_within_its_bounds(
    tier: Tier, total_gib: int, reserve_gib: float
) -> None:
    """reserve left to the Mac: share of RAM (min, max GiB): 20 % (6, 16) | 8 % (3, 8) |
    2 % (1.5, 4) | flat 2 GiB"""
    assert reserve(tier, total_gib * GiB) == int(reserve_gib * GiB)


def test_each_tier_has_its_marks_and_margins() -> None:
    """share of other apps' active memory: 0 | 0 | 0.5 | -; soft mark 0.85 | 0.90 | 0.95 | 0.90;
    hard mark 0.95 | 0.95 | 0.98 | 0.97; prefill headroom safety 0.90 | 0.92 | 0.97 | 0.95;
    prefill abort margin 0.90 | 0.93 | 0.97 | 0.95"""
    rows = {
        tier.value: (
            row.reclaim_ratio,
            row.soft,
            row.hard,
            row.headroom_safety,
            row.abort_margin,
        )
        for tier, row in TIERS.items()
    }
    assert rows == {
        "safe": (0.0, 0.85, 0.95, 0.90, 0.90),
        "balanced": (0.0, 0.90, 0.95, 0.92, 0.93),
        "aggressive": (0.5, 0.95, 0.98, 0.97, 0.97),
        "custom": (0.0, 0.90, 0.97, 0.95, 0.95),
    }


def test_the_other_constants_are_as_specified() -> None:
    """Prefill safe zone ratio 0.89, smallest chunk 256 tokens, full chunk 2048 tokens. Emergency:
    2 GiB over, or 2 polls over. Pool reclaim floor 2 GiB, at most 5 deferring polls an episode.
    Hot-cache reservation slack 512 MiB. Longest wait for dirty blocks to reach the SSD 5 s. Polls
    1 s / 10 s / 30 s. Activity hint at least 2 s."""
    assert (SAFE_ZONE_RATIO, MIN_CHUNK_TOKENS, FULL_CHUNK_TOKENS) == (0.89, 256, 2048)
    assert (2 * GiB, 2) == (EMERGENCY_OVER_BYTES, EMERGENCY_OVER_POLLS)
    assert (2 * GiB, 5) == (BUFFER_CACHE_FLOOR, MAX_DEFERRALS)
    assert (512 * MiB, 5.0) == (HOT_CACHE_SLACK, STORE_FLUSH_LIMIT)
    assert (POLL_PRESSURE, POLL_LOADED, POLL_EMPTY, HINT_MINIMUM) == (1.0, 10.0, 30.0, 2.0)


def test_the_default_is_balanced_and_acts() -> None:
    """balanced (default)"""
    policy = GuardPolicy()
    assert (policy.tier, policy.enabled, policy.enforce) == (Tier.BALANCED, True, True)
    assert (policy.soft, policy.hard) == (0.90, 0.95)


@pytest.mark.parametrize("value", [0.85, 0.95, 0.01, 1.0])
def test_a_threshold_that_the_user_set_is_honoured_whatever_it_is(value: float) -> None:
    """A threshold the user did not set is None = "the tier's own"; any number the user sets is
    honoured, 0.85 and 0.95 included"""
    assert GuardPolicy(tier=Tier.AGGRESSIVE, soft_threshold=value).soft == value
    assert GuardPolicy(tier=Tier.AGGRESSIVE, hard_threshold=value).hard == value
    assert GuardPolicy(tier=Tier.AGGRESSIVE).soft == 0.95


@pytest.mark.parametrize("value", [0.0, -0.1, 1.01, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["soft_threshold", "hard_threshold"])
def test_a_fraction_outside_its_range_is_refused_by_name(name: str, value: float) -> None:
    """soft >= hard, or a value outside (0, 1], is refused by name."""
    changed: Any = {name: value}
    found = mistakes(replace(GuardPolicy(), **changed))
    assert [mistake.name for mistake in found] == [name]
    assert name in found[0].text


@pytest.mark.parametrize(
    ("soft", "hard", "name"),
    [
        (0.9, 0.9, "soft_threshold"),
        (0.96, 0.95, "soft_threshold"),
        (0.95, None, "soft_threshold"),
        (None, 0.90, "hard_threshold"),
        (None, 0.5, "hard_threshold"),
    ],
)
def test_a_soft_mark_at_or_above_the_hard_one_is_refused(
    soft: float | None, hard: float | None, name: str
) -> None:
    """soft >= hard, or a value outside (0, 1], is refused by name."""
    found = mistakes(GuardPolicy(soft_threshold=soft, hard_threshold=hard))
    assert [mistake.name for mistake in found] == [name]
    assert "soft_threshold" in found[0].text
    assert "hard_threshold" in found[0].text


def test_all_mistakes_are_found_at_once() -> None:
    policy = GuardPolicy(
        soft_threshold=2.0,
        hard_threshold=0.0,
        custom_ceiling_bytes=0,
    )
    assert {mistake.name for mistake in mistakes(policy)} == {
        "soft_threshold",
        "hard_threshold",
        "custom_ceiling_bytes",
    }


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf")])
def test_a_custom_ceiling_that_is_no_size_is_refused(size: float) -> None:
    """zero, negative or not finite is a 400"""
    policy = GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=size)  # type: ignore[arg-type]
    assert [mistake.name for mistake in mistakes(policy)] == ["custom_ceiling_bytes"]


def test_a_custom_ceiling_set_under_another_tier_is_refused_t04() -> None:
    """T04: setting a custom ceiling while the tier is another, and not changed in the same call,
    is refused with a clear text, never ignored"""
    balanced = GuardPolicy(custom_ceiling_bytes=60 * GiB)
    found = mistakes(balanced, changed={"custom_ceiling_bytes"})
    assert [mistake.name for mistake in found] == ["custom_ceiling_bytes"]
    assert "'balanced'" in found[0].text
    custom = replace(balanced, tier=Tier.CUSTOM)
    assert mistakes(custom, changed={"custom_ceiling_bytes", "tier"}) == ()
    assert mistakes(GuardPolicy(), changed={"custom_ceiling_bytes"}) == ()


def test_switching_the_tier_away_keeps_the_ceiling_and_says_so_t04() -> None:
    """T04: switching the tier away keeps the stored ceiling for later"""
    policy = GuardPolicy(custom_ceiling_bytes=60 * GiB)
    assert mistakes(policy, changed={"tier"}) == ()
    (clamp,) = clamps(policy, static=100 * GiB, metal=None)
    assert (clamp.cause, clamp.asked, clamp.effective) == (
        ClampCause.OTHER_TIER,
        60 * GiB,
        None,
    )
    assert "'balanced'" in clamp.text


@pytest.mark.parametrize(
    ("asked", "static", "metal", "effective", "causes"),
    [
        (50, 62, 48, 48, [ClampCause.METAL_CAP]),
        (70, 62, None, 62, [ClampCause.RAM_RESERVE]),
        (70, 62, 65, 62, [ClampCause.RAM_RESERVE, ClampCause.METAL_CAP]),
        (48, 62, 48, None, []),
        (62, 62, None, None, []),
        (1, 62, 48, None, []),
    ],
)
def test_a_clamped_custom_ceiling_is_reported_with_its_cause_t05(
    asked: int, static: int, metal: int | None, effective: int | None, causes: list[ClampCause]
) -> None:
    """T05: clamp reported with its cause; values under the Metal cap accepted. A ceiling above
    the RAM is clamped and reported"""
    policy = GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=asked * GiB)
    found = clamps(policy, static * GiB, None if metal is None else metal * GiB)
    assert [clamp.cause for clamp in found] == causes
    assert all(clamp.effective == (effective or 0) * GiB for clamp in found)
    assert mistakes(policy, changed={"custom_ceiling_bytes"}) == ()


def test_without_a_custom_ceiling_nothing_is_clamped() -> None:
    assert clamps(GuardPolicy(tier=Tier.CUSTOM), static=GiB, metal=GiB) == ()
