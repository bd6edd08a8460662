"""Whether an idle device waits a moment for more requests before it begins."""

import math

from hypothesis import given
from hypothesis import strategies as st

from omlxd.policy.batching import (
    HOLD_SHARE,
    LONGEST_HOLD,
    QUIET,
    QUIET_SHARE,
    BatchWindow,
    hold_seconds,
    joined,
)

LONG = 60.0
"""Seconds of prefill that no share of makes the wait shorter."""


def test_one_that_comes_alone_waits_for_next_to_nothing() -> None:
    assert math.isclose(hold_seconds(joined(None, 5.0, LONG), 5.0, coming=0), QUIET)
    short = hold_seconds(joined(None, 5.0, 0.02), 5.0, coming=0)
    assert math.isclose(short, 0.02 * QUIET_SHARE)


def test_the_first_waits_for_those_on_their_way() -> None:
    alone = joined(None, 5.0, LONG)
    assert math.isclose(hold_seconds(alone, 5.0, coming=1), LONGEST_HOLD)
    assert hold_seconds(alone, 5.0 + LONGEST_HOLD, coming=7) == 0.0


def test_the_wait_ends_when_no_more_come() -> None:
    two = joined(joined(None, 5.0, LONG), 5.01, LONG)
    assert two == BatchWindow(5.0, 5.01, 2 * LONG)
    assert math.isclose(hold_seconds(two, 5.02, coming=0), QUIET - 0.01)
    assert hold_seconds(two, 5.01 + QUIET, coming=0) == 0.0


def test_a_newcomer_does_not_move_the_end() -> None:
    late = joined(joined(None, 5.0, LONG), 5.0 + LONGEST_HOLD, LONG)
    assert hold_seconds(late, 5.0 + LONGEST_HOLD, coming=3) == 0.0


def test_short_prompts_wait_for_a_share_of_what_they_take() -> None:
    short = joined(None, 5.0, 0.2)
    assert math.isclose(hold_seconds(short, 5.0, coming=1), 0.2 * HOLD_SHARE)
    both = joined(short, 5.0, 0.3)
    assert math.isclose(hold_seconds(both, 5.0, coming=1), 0.5 * HOLD_SHARE)


def test_an_unknown_pace_counts_as_slow() -> None:
    assert math.isclose(hold_seconds(joined(None, 5.0, math.inf), 5.0, coming=1), LONGEST_HOLD)


@given(
    gaps=st.lists(st.floats(0, 0.05), min_size=1, max_size=20),
    prefill=st.floats(0, 10),
    coming=st.integers(0, 8),
)
def test_whoever_comes_and_whenever_the_first_begins_in_time(
    gaps: list[float], prefill: float, coming: int
) -> None:
    gathering, now = joined(None, 0.0, prefill), 0.0
    for gap in gaps:
        wait = hold_seconds(gathering, now, coming=coming)
        if wait == 0.0:
            return
        assert 0.0 < wait <= LONGEST_HOLD + 1e-9 - now
        now += min(gap, wait)
        gathering = joined(gathering, now, prefill)
