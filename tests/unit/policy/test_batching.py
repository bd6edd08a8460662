"""Whether an idle device waits a moment for more requests before it begins."""

import math

from hypothesis import given
from hypothesis import strategies as st

from omlxd.policy.batching import (
    LONGEST_WINDOW,
    QUIET,
    QUIET_SHARE,
    WINDOW_SHARE,
    BatchWindow,
    extended,
    seconds_left,
)

LONG = 60.0
"""Seconds of prefill; no share of it makes the wait shorter."""


def test_one_that_comes_alone_waits_for_next_to_nothing() -> None:
    assert math.isclose(seconds_left(extended(None, 5.0, LONG), 5.0, coming=0), QUIET)
    short = seconds_left(extended(None, 5.0, 0.02), 5.0, coming=0)
    assert math.isclose(short, 0.02 * QUIET_SHARE)


def test_the_first_waits_for_those_on_their_way() -> None:
    alone = extended(None, 5.0, LONG)
    assert math.isclose(seconds_left(alone, 5.0, coming=1), LONGEST_WINDOW)
    assert seconds_left(alone, 5.0 + LONGEST_WINDOW, coming=7) == 0.0


def test_the_wait_ends_when_no_more_come() -> None:
    two = extended(extended(None, 5.0, LONG), 5.01, LONG)
    assert two == BatchWindow(5.0, 5.01, 2 * LONG)
    assert math.isclose(seconds_left(two, 5.02, coming=0), QUIET - 0.01)
    assert seconds_left(two, 5.01 + QUIET, coming=0) == 0.0


def test_one_more_request_does_not_move_the_end() -> None:
    late = extended(extended(None, 5.0, LONG), 5.0 + LONGEST_WINDOW, LONG)
    assert seconds_left(late, 5.0 + LONGEST_WINDOW, coming=3) == 0.0


def test_short_prompts_wait_for_a_share_of_what_they_take() -> None:
    short = extended(None, 5.0, 0.2)
    assert math.isclose(seconds_left(short, 5.0, coming=1), 0.2 * WINDOW_SHARE)
    both = extended(short, 5.0, 0.3)
    assert math.isclose(seconds_left(both, 5.0, coming=1), 0.5 * WINDOW_SHARE)


def test_an_unknown_pace_counts_as_slow() -> None:
    assert math.isclose(seconds_left(extended(None, 5.0, math.inf), 5.0, coming=1), LONGEST_WINDOW)


@given(
    gaps=st.lists(st.floats(0, 0.05), min_size=1, max_size=20),
    prefill=st.floats(0, 10),
    coming=st.integers(0, 8),
)
def test_whoever_comes_and_whenever_the_first_begins_in_time(
    gaps: list[float], prefill: float, coming: int
) -> None:
    window, now = extended(None, 0.0, prefill), 0.0
    for gap in gaps:
        wait = seconds_left(window, now, coming=coming)
        if wait == 0.0:
            return
        assert 0.0 < wait <= LONGEST_WINDOW + 1e-9 - now
        now += min(gap, wait)
        window = extended(window, now, prefill)
