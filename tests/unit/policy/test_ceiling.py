from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlxd.policy.ceiling import (
    Binding,
    Ceilings,
    DynamicFilter,
    HotCache,
    Limits,
    compute_ceilings,
    dynamic_term,
    filter_dynamic,
    metal_term,
    renumber,
    static_term,
)
from omlxd.policy.readings import MemoryReading
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.units import GiB, MiB
from tests.unit.policy.scene import ceilings, reading


def compute(seen: MemoryReading, policy: GuardPolicy, hot: HotCache | None = None) -> Ceilings:
    return compute_ceilings(seen, policy, DynamicFilter(), hot, seen.taken_at)[0]


MAC = reading(
    total=64 * GiB,
    footprint=20 * GiB,
    graphics_footprint=17 * GiB,
    free=10 * GiB,
    inactive=8 * GiB,
    external=9 * GiB,
    active=20 * GiB,
    device_cap=48 * GiB,
)
"""A Mac of 64 GiB: 1 GiB of active file cache, 16 GiB of other apps' active memory."""


def test_static_is_ram_less_the_reserve() -> None:
    """static = total RAM - tier reserve."""
    assert static_term(64 * GiB, Tier.CUSTOM) == 62 * GiB
    assert static_term(100 * GiB, Tier.BALANCED) == 92 * GiB
    assert static_term(4 * GiB, Tier.SAFE) == 0


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        (Tier.SAFE, 39 * GiB - int(64 * GiB * 0.20)),
        (Tier.BALANCED, 39 * GiB - int(64 * GiB * 0.08)),
        (Tier.AGGRESSIVE, 39 * GiB + 8 * GiB - 3 * GiB // 2),
    ],
)
def test_dynamic_is_what_is_held_and_could_still_be_had(tier: Tier, expected: int) -> None:
    """dynamic (safe, balanced, aggressive) = own footprint + free + inactive + max(0, external -
    inactive) + ratio x max(0, active - max(0, external - inactive) - own CPU footprint) -
    reserve"""
    assert dynamic_term(MAC, tier, 0.0) == expected


def test_dynamic_is_never_negative() -> None:
    """never negative"""
    assert (
        dynamic_term(replace(MAC, footprint=0, free=0, inactive=0, external=0), Tier.SAFE, 0) == 0
    )


def test_file_cache_is_counted_once() -> None:
    """max(0, external - inactive)"""
    more = replace(MAC, external=7 * GiB)
    less = replace(MAC, external=0)
    assert dynamic_term(more, Tier.SAFE, 0) == dynamic_term(less, Tier.SAFE, 0)
    assert dynamic_term(MAC, Tier.SAFE, 0) == (dynamic_term(less, Tier.SAFE, 0) or 0) + GiB


def test_without_a_ledger_the_whole_footprint_is_cpu_in_the_dynamic_term() -> None:
    """Without a graphics ledger the own CPU footprint is the whole footprint here"""
    without = replace(MAC, graphics_footprint=None, active=30 * GiB)
    # others = 30 - 1 - 20 = 9 GiB, of which half
    assert dynamic_term(without, Tier.AGGRESSIVE, 0) == 39 * GiB + 9 * GiB // 2 - 3 * GiB // 2


def test_dynamic_takes_footprint_and_counters_of_one_instant() -> None:
    """Within the dynamic term, own footprint and host counters are of one instant: fresh
    footprint with stale free memory would drop the ceiling just after an unload"""
    after_unload = replace(
        MAC, footprint=5 * GiB, counted_footprint=20 * GiB, counted_graphics=17 * GiB
    )
    for tier in (Tier.SAFE, Tier.AGGRESSIVE):
        assert dynamic_term(after_unload, tier, 0) == dynamic_term(MAC, tier, 0)


def test_metal_is_the_device_cap_and_own_cpu_memory() -> None:
    """metal = device cap + own CPU footprint (footprint - graphics; 0 without a ledger)"""
    assert metal_term(MAC, 0.0) == 51 * GiB
    assert metal_term(replace(MAC, graphics_footprint=None), 0.0) == 48 * GiB
    assert metal_term(replace(MAC, device_cap=None), 0.0) is None
    assert metal_term(replace(MAC, graphics_footprint=25 * GiB), 0.0) == 48 * GiB


def test_the_custom_term_is_the_users_number() -> None:
    """custom = the user's number; unset = no dynamic term. The custom tier has no computed
    dynamic term"""
    policy = GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=30 * GiB)
    assert compute(MAC, policy).dynamic == 30 * GiB
    assert compute(MAC, policy).ceiling == 30 * GiB
    unset = compute(MAC, GuardPolicy(tier=Tier.CUSTOM))
    assert (unset.dynamic, unset.ceiling, unset.binding) == (None, 51 * GiB, Binding.METAL_CAP)


def test_a_custom_number_above_a_bound_is_clamped_by_it_t05() -> None:
    """T05: clamped to RAM - 2 GiB or the Metal cap"""
    policy = GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=500 * GiB)
    assert compute(MAC, policy).ceiling == 51 * GiB
    assert compute(replace(MAC, device_cap=None), policy).ceiling == 62 * GiB


@pytest.mark.parametrize(
    ("static", "dynamic", "metal", "ceiling", "binding"),
    [
        (9, 8, 7, 7, Binding.METAL_CAP),
        (9, 7, 8, 7, Binding.DYNAMIC),
        (7, 8, 9, 7, Binding.STATIC),
        (7, 7, 7, 7, Binding.STATIC),
        (9, 7, 7, 7, Binding.DYNAMIC),
        (9, None, None, 9, Binding.STATIC),
        (9, 0, None, 0, Binding.DYNAMIC),
    ],
)
def test_the_ceiling_is_the_least_of_the_known_terms(
    static: int, dynamic: int | None, metal: int | None, ceiling: int, binding: Binding
) -> None:
    """ceiling = min(static, dynamic, metal) over the terms that are known; the first wins a tie"""
    bounds = ceilings(static=static, dynamic=dynamic, metal=metal)
    assert (bounds.ceiling, bounds.binding) == (ceiling, binding)


def test_with_nothing_but_the_total_the_ceiling_is_static() -> None:
    """If nothing can be read but total RAM, the ceiling is static and the daemon keeps running."""
    blind = MemoryReading(taken_at=0.0, total=64 * GiB)
    bounds = compute(blind, GuardPolicy())
    assert (bounds.ceiling, bounds.binding) == (bounds.static, Binding.STATIC)


def test_psutils_available_memory_stands_in_for_the_counters() -> None:
    """A reading that fails degrades: host statistics -> psutil's available memory as "free"
    (inactive and other apps 0) -> static ceiling"""
    psutil = replace(MAC, free=18 * GiB, inactive=0, external=0, active=0)
    assert compute(psutil, GuardPolicy()).dynamic == 38 * GiB - int(64 * GiB * 0.08)
    nothing = replace(MAC, free=None, inactive=None, external=None, active=None, device_cap=None)
    assert compute(nothing, GuardPolicy()).binding is Binding.STATIC


@pytest.mark.parametrize("name", ["free", "inactive", "device_cap"])
@pytest.mark.parametrize("tier", list(Tier))
def test_an_unknown_number_never_lowers_the_ceiling(name: str, tier: Tier) -> None:
    """None means unknown, zero means zero"""
    policy = GuardPolicy(tier=tier, custom_ceiling_bytes=30 * GiB)
    known = compute(MAC, policy).ceiling
    forgotten: Any = {name: None}
    unknown = compute(replace(MAC, **forgotten), policy).ceiling
    assert known is not None
    assert unknown is not None
    assert unknown >= known


def test_a_frozen_reading_leaves_the_static_ceiling() -> None:
    """a frozen one refuses nothing for ever"""
    bounds, _ = compute_ceilings(
        replace(MAC, free=0, inactive=0, external=0), GuardPolicy(), DynamicFilter(), None, 5.1
    )
    assert bounds.dynamic is None
    assert bounds.ceiling == 48 * GiB


@given(
    numbers=st.tuples(*[st.integers(0, 64 * GiB)] * 5),
    tier=st.sampled_from(list(Tier)),
    cap=st.none() | st.integers(0, 64 * GiB),
)
def test_every_accessor_follows_from_the_terms(
    numbers: tuple[int, ...], tier: Tier, cap: int | None
) -> None:
    """accessors: final, admission, admission soft target, residency, abort limit, scheduler
    ceiling, scheduler abort limit"""
    names = ("footprint", "free", "inactive", "external", "active")
    seen = reading(total=64 * GiB, device_cap=cap, **dict(zip(names, numbers, strict=True)))
    policy = GuardPolicy(tier=tier, custom_ceiling_bytes=40 * GiB)
    hot = HotCache(used=GiB, maximum=4 * GiB)
    bounds = compute(seen, policy, hot)
    terms = [t for t in (bounds.static, bounds.dynamic, bounds.metal) if t is not None]
    reserved = GiB + 512 * MiB
    assert bounds.ceiling == bounds.admission == min(terms)
    assert bounds.soft == bounds.admission_soft == int(min(terms) * policy.soft)
    assert bounds.hard == int(min(terms) * policy.hard)
    assert bounds.residency == min(bounds.static, bounds.static if cap is None else cap)
    abort = min(t for t in (bounds.static, bounds.metal) if t is not None)
    assert bounds.abort_limit == abort
    assert bounds.scheduler == max(0, min(terms) - reserved)
    assert bounds.scheduler_abort == max(0, abort - reserved)


def test_with_the_guard_off_there_is_no_ceiling() -> None:
    """Guard off = no ceiling; residency, abort and scheduler limits are None; admission ceiling:
    static when the guard is off"""
    off = compute(MAC, GuardPolicy(enabled=False))
    assert (off.ceiling, off.binding, off.soft, off.hard) == (None, None, None, None)
    assert (off.residency, off.abort_limit, off.scheduler, off.scheduler_abort) == (None,) * 4
    assert off.admission == off.static
    assert off.admission_soft == int(off.static * 0.90)


@pytest.mark.parametrize(
    ("hot", "reserved", "used"),
    [
        (None, 0, 0),
        (HotCache(0, 0), 0, 0),
        (HotCache(0, 8 * GiB), 512 * MiB, 0),
        (HotCache(2 * GiB, 8 * GiB), 2 * GiB + 512 * MiB, 2 * GiB),
        (HotCache(8 * GiB, 8 * GiB), 8 * GiB, 8 * GiB),
        (HotCache(9 * GiB, 8 * GiB), 8 * GiB, 8 * GiB),
    ],
)
def test_the_hot_cache_has_its_reservation(hot: HotCache | None, reserved: int, used: int) -> None:
    """hot-cache reservation = min(hot-cache maximum, hot-cache used + 512 MiB); 0 without one;
    hot-cache used = min(used, reserved)"""
    bounds = compute(MAC, GuardPolicy(tier=Tier.CUSTOM), hot)
    assert (bounds.hot_cache_reserved, bounds.hot_cache_used) == (reserved, used)
    assert bounds.scheduler == 51 * GiB - reserved


def test_taking_the_reservation_off_never_goes_below_zero() -> None:
    """A subtraction of the reservation never goes below zero."""
    bounds = ceilings(dynamic=GiB, metal=GiB, hot_cache_reserved=2 * GiB)
    assert (bounds.scheduler, bounds.scheduler_abort) == (0, 0)


def test_schedulers_get_one_whole_set_of_limits() -> None:
    """Handed to schedulers (one frozen Limits): soft and hard marks = int(scheduler ceiling x
    fraction), hard limit = scheduler ceiling, abort limit and margin, the three terms and the raw
    device cap, tier, guard on, admission paused, headroom safety, safe zone, smallest chunk,
    hot-cache reserved, hot-cache used"""
    policy = GuardPolicy(tier=Tier.SAFE)
    bounds = compute(MAC, policy, HotCache(GiB, 4 * GiB))
    reserved = 3 * GiB // 2
    static, dynamic = 64 * GiB - int(64 * GiB * 0.2), 39 * GiB - int(64 * GiB * 0.2)
    assert bounds.limits(policy, paused=True) == Limits(
        generation=0,
        enabled=True,
        tier="safe",
        soft_bytes=int((dynamic - reserved) * 0.85),
        hard_bytes=int((dynamic - reserved) * 0.95),
        hard_limit=dynamic - reserved,
        abort_limit=51 * GiB - reserved,
        static_bytes=static,
        dynamic_bytes=dynamic,
        metal_bytes=51 * GiB,
        device_cap=48 * GiB,
        admission_paused=True,
        abort_margin=0.90,
        headroom_safety=0.90,
        safe_zone_ratio=0.89,
        min_chunk_tokens=256,
        hot_cache_reserved=reserved,
        hot_cache_used=GiB,
    )


@pytest.mark.parametrize("policy", [GuardPolicy(enabled=False), GuardPolicy(enforce=False)])
def test_a_guard_that_is_off_or_only_watches_hands_out_no_limit(policy: GuardPolicy) -> None:
    """Monitor mode: same decisions, logged and shown, nothing done. Guard off: limits are None"""
    limits = compute(MAC, policy).limits(policy, paused=True)
    assert (limits.enabled, limits.admission_paused) == (False, False)
    assert limits.soft_bytes is limits.hard_bytes is limits.hard_limit is None
    assert limits.abort_limit is None


def test_limits_get_a_new_number_only_when_they_change() -> None:
    old = Limits(generation=7, soft_bytes=1)
    assert renumber(old, Limits(soft_bytes=1)) is old
    assert renumber(old, Limits(soft_bytes=2)) == Limits(generation=8, soft_bytes=2)


def test_one_odd_sample_decides_nothing() -> None:
    """The dynamic term passes a median of the last three samples, so one odd sample (another
    app's spike) never evicts or aborts; the ceiling still moves every tick."""
    kept, seen = DynamicFilter(), []
    for at, value in enumerate([50, 51, 52, 3, 53, 54]):
        median, kept = filter_dynamic(kept, Tier.SAFE, value, float(at))
        seen.append(median)
    assert seen == [50, 51, 51, 51, 52, 53]


@pytest.mark.parametrize(("first", "second"), [(50, 3), (3, 50)])
def test_of_two_samples_the_higher_one_stands(first: int, second: int) -> None:
    """one odd sample never evicts or aborts"""
    _, kept = filter_dynamic(DynamicFilter(), Tier.SAFE, first, 0.0)
    assert filter_dynamic(kept, Tier.SAFE, second, 1.0)[0] == 50


@pytest.mark.parametrize(("gap", "median"), [(0.4, 50), (0.5, 10)])
def test_samples_of_a_burst_count_once(gap: float, median: int) -> None:
    """Ticks closer together than half a poll interval (a burst of wakes) count once: for the
    samples of the median."""
    kept = DynamicFilter()
    for at, value in ((0.0, 50), (1.0, 50), (2.0, 10)):
        _, kept = filter_dynamic(kept, Tier.SAFE, value, at)
    assert filter_dynamic(kept, Tier.SAFE, 10, 2.0 + gap)[0] == median


def test_a_reading_looked_at_twice_is_one_sample() -> None:
    kept = DynamicFilter()
    for now in (0.0, 0.7, 1.4):
        _, kept = compute_ceilings(MAC, GuardPolicy(), kept, None, now)
    assert len(kept.samples) == 1


def test_a_new_tier_starts_its_own_samples() -> None:
    """takes effect at the next tick"""
    kept = DynamicFilter(Tier.SAFE, (10, 10, 10), 0.0)
    assert filter_dynamic(kept, Tier.AGGRESSIVE, 40, 0.1)[0] == 40


def test_a_failed_sample_is_unknown_and_the_next_is_still_filtered() -> None:
    """one odd sample (another app's spike) never evicts or aborts"""
    kept = DynamicFilter(Tier.SAFE, (50, 50, 50), 0.0)
    failed, kept = filter_dynamic(kept, Tier.SAFE, None, 1.0)
    assert failed is None
    assert filter_dynamic(kept, Tier.SAFE, 3, 2.0)[0] == 50
