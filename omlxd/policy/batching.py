"""Which requests join a batch, and how long an idle device waits for more of them.

Requests that come together to an idle device are prefilled together. If each began at once, the
first would decode while the prompts of the others are cut into small chunks to keep it fast, and
each would wait longer for its first token.
"""

from dataclasses import dataclass

from omlxd.policy.pressure import request_may_start

LONGEST_WINDOW = 0.1
"""Seconds that the first request waits at most."""
WINDOW_SHARE = 0.2
"""Share of the time that the prompts will take: a short wait pays only where prefill is long."""
QUIET, QUIET_SHARE = 0.015, 0.1
"""The window ends after so many seconds, or that share of the prefill, without a new request."""


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """The requests that came since the device was idle.

    Attributes:
        began: when the first of them came, in seconds of some clock.
        latest: when the last one came.
        prefill_seconds: how long their prompts will take; infinite while the pace is unknown.
    """

    began: float
    latest: float
    prefill_seconds: float


def extended(window: BatchWindow | None, now: float, prefill_seconds: float) -> BatchWindow:
    """``window`` with one more request; None if the device was idle."""
    if window is None:
        return BatchWindow(now, now, prefill_seconds)
    return BatchWindow(window.began, now, window.prefill_seconds + prefill_seconds)


def seconds_left(window: BatchWindow, now: float, *, coming: int) -> float:
    """Seconds to wait for more requests before the first step; 0 means begin.

    While ``coming`` requests are expected, the window stays open for them. Otherwise it ends when
    no new request has come for a while.
    """
    ends = window.began + min(LONGEST_WINDOW, WINDOW_SHARE * window.prefill_seconds)
    if coming == 0:
        quiet = min(QUIET, QUIET_SHARE * window.prefill_seconds)
        ends = min(ends, window.latest + quiet)
    return max(ends - now, 0.0)


def admissible(*, waiting: int, running: int, max_concurrent: int, paused: bool) -> int:
    """How many of a loaded model's ``waiting`` requests join its batch in the next step."""
    if not request_may_start(paused=paused, loaded=True, idle=running == 0, anything_loaded=True):
        return 0
    # While admission is paused an idle model takes one request, and then it is not idle.
    return min(waiting, 1 if paused else max_concurrent - running)
