"""When an idle device begins: requests that come together are prefilled together.

Begun one by one, the first would decode while the prompts of the others are cut into small
chunks for its sake, and each would wait longer for its first token than if all had begun at once.
"""

from dataclasses import dataclass

LONGEST_HOLD = 0.1
"""Seconds that the first of them waits at most."""
HOLD_SHARE = 0.2
"""Of the time that the prompts at hand will take: a short wait pays only where prefill is long."""
QUIET, QUIET_SHARE = 0.015, 0.1
"""Seconds without a newcomer, or that share of the same time, after which all are here."""


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """The requests that came since the device was idle.

    Attributes:
        began: when the first of them came, in seconds of some clock.
        latest: when the last one came.
        prefill_seconds: that their prompts will take; infinite while the pace is unknown.
    """

    began: float
    latest: float
    prefill_seconds: float


def joined(gathering: BatchWindow | None, now: float, prefill_seconds: float) -> BatchWindow:
    """``gathering`` with one more request."""
    if gathering is None:
        return BatchWindow(now, now, prefill_seconds)
    return BatchWindow(gathering.began, now, gathering.prefill_seconds + prefill_seconds)


def hold_seconds(gathering: BatchWindow, now: float, *, coming: int) -> float:
    """How long to wait for more before the first step; 0 means begin.

    While ``coming`` requests are on their way here, they are waited for; else only a newcomer.
    """
    ends = gathering.began + min(LONGEST_HOLD, HOLD_SHARE * gathering.prefill_seconds)
    if coming == 0:
        quiet = min(QUIET, QUIET_SHARE * gathering.prefill_seconds)
        ends = min(ends, gathering.latest + quiet)
    return max(ends - now, 0.0)
