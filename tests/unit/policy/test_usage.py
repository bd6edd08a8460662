from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlxd.policy.readings import AllocatorSample, Source
from omlxd.policy.usage import ReleaseWindow, fresh_sample, measure_usage, recent, unreleased
from omlxd.units import GiB
from tests.unit.policy.scene import reading


def taken(now: float, active: int = 0, pool: int = 0) -> AllocatorSample:
    return AllocatorSample(taken_at=now, active=active, buffer_cache=pool, peak=active)


@pytest.mark.parametrize(("active", "footprint"), [(10, 12), (12, 10), (7, 7)])
def test_usage_is_the_larger_of_active_and_footprint(active: int, footprint: int) -> None:
    """Usage = max(MLX active, own footprint - graphics memory that MLX has already freed but the
    driver still holds)."""
    usage, _ = measure_usage(
        reading(footprint=footprint), taken(0, active), ReleaseWindow(), now=0.0
    )
    assert usage.bytes == max(active, footprint)


def test_graphics_memory_that_the_driver_still_holds_is_taken_off() -> None:
    """The latter is (graphics - (active + pool)) minus its own minimum over the last 10 s"""
    settled = reading(0, footprint=30 * GiB, graphics_footprint=21 * GiB)
    usage, window = measure_usage(settled, taken(0, 18 * GiB, 2 * GiB), ReleaseWindow(), 0.0)
    assert (usage.bytes, usage.unreleased) == (30 * GiB, 0)
    freed = reading(1, footprint=30 * GiB, graphics_footprint=21 * GiB)
    usage, _ = measure_usage(freed, taken(1, 8 * GiB, 2 * GiB), window, 1.0)
    assert (usage.bytes, usage.unreleased) == (20 * GiB, 10 * GiB)


def test_the_comparison_reaches_ten_seconds_back() -> None:
    """minus its own minimum over the last 10 s"""
    _, window = unreleased(ReleaseWindow(), 5 * GiB, taken(0, 5 * GiB), 0.0)
    held, window = unreleased(window, 8 * GiB, taken(9, 5 * GiB), 9.0)
    assert held == 3 * GiB
    held, window = unreleased(window, 8 * GiB, taken(10, 5 * GiB), 10.0)
    assert held == 3 * GiB
    held, window = unreleased(window, 8 * GiB, taken(11, 5 * GiB), 11.0)
    assert held == 0


def test_without_a_graphics_ledger_nothing_is_taken_off() -> None:
    """0 where there is no graphics ledger"""
    window = ReleaseWindow(((0.0, 0),), (0.0, 5 * GiB))
    assert unreleased(window, None, taken(1), 1.0) == (0, ReleaseWindow())


@pytest.mark.parametrize(("later", "held"), [(2.0, 4 * GiB), (2.1, 0)])
def test_old_allocator_numbers_reuse_the_last_result_for_two_seconds(
    later: float, held: int
) -> None:
    """a caller whose MLX numbers are not fresh reuses the last result for at most 2 s"""
    _, window = unreleased(ReleaseWindow(), 5 * GiB, taken(0, 5 * GiB), 0.0)
    fresh, window = unreleased(window, 5 * GiB, taken(1, GiB), 1.0)
    assert fresh == 4 * GiB
    assert unreleased(window, 5 * GiB, None, 1.0 + later) == (held, window)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 6), st.integers(0, 20), st.integers(0, 10), st.integers(0, 10)),
        min_size=1,
        max_size=20,
    )
)
def test_the_window_agrees_with_looking_at_every_sample(
    steps: list[tuple[float, int, int, int]],
) -> None:
    """never below 0, and the minimum of all samples of the last ten seconds"""
    window, now, seen = ReleaseWindow(), 0.0, []
    for gap, graphics, active, pool in steps:
        now += gap
        held, window = unreleased(window, graphics, taken(now, active, pool), now)
        seen.append((now, graphics - active - pool))
        lowest = min(size for at, size in seen if now - at <= 10)
        assert held == seen[-1][1] - lowest >= 0


@pytest.mark.parametrize(("late", "kept"), [(5.0, True), (5.1, False)])
def test_an_old_sample_loses_its_terms(late: float, kept: bool) -> None:
    """A sample of the device thread older than its limit (default 5 s while busy) loses its MLX
    terms: the footprint alone still sets the level"""
    sample = taken(0, 50 * GiB, 9 * GiB)
    assert (fresh_sample(sample, late) is sample) is kept
    usage, _ = measure_usage(reading(late, footprint=20 * GiB), sample, ReleaseWindow(), late)
    assert usage.bytes == (50 * GiB if kept else 20 * GiB)
    assert usage.buffer_cache == (9 * GiB if kept else None)
    assert usage.fresh is kept


def test_unknown_is_never_zero() -> None:
    usage, _ = measure_usage(reading(footprint=None), None, ReleaseWindow(), 0.0)
    assert usage.bytes is None
    usage, _ = measure_usage(reading(footprint=None), taken(0, GiB), ReleaseWindow(), 0.0)
    assert usage.bytes == GiB


def test_a_frozen_reading_is_forgotten_number_by_number() -> None:
    """Every reading carries the time it was taken."""
    sources = MappingProxyType({"free": Source("host", 10.0)})
    mixed = reading(16.0, footprint=3, free=4, sources=sources)
    assert recent(mixed, "free", 15.0) == 4
    assert recent(mixed, "free", 15.1) is None
    assert recent(mixed, "footprint", 21.0) == 3
    assert recent(mixed, "footprint", 21.1) is None
