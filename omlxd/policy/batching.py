"""When an idle device begins: requests that come together are prefilled together.

Begun one by one, the first would decode while the prompts of the others are cut into small
chunks for its sake, and each would wait longer for its first token than if all had begun at once.
"""

from dataclasses import dataclass, replace

LONGEST_HOLD = 0.1
"""Seconds that the first of them waits at most."""
HOLD_SHARE = 0.1
"""Of the time that the prompts at hand will take: a short wait pays only where prefill is long."""
QUIET = 0.015
"""Seconds without a newcomer after which those who came together are all here."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """The requests that came since the device was idle.

    Attributes:
        began: when the first of them came, in seconds of some clock.
        latest: when the last one came.
        requests: how many.
        prefill_seconds: that their prompts will take; infinite while the pace is unknown.
    """

    began: float
    latest: float
    requests: int
    prefill_seconds: float


def joined(gathering: Gathering | None, now: float, prefill_seconds: float) -> Gathering:
    """``gathering`` with one more request."""
    if gathering is None:
        return Gathering(now, now, 1, prefill_seconds)
    return replace(
        gathering,
        latest=now,
        requests=gathering.requests + 1,
        prefill_seconds=gathering.prefill_seconds + prefill_seconds,
    )


def hold_seconds(gathering: Gathering, now: float, *, coming: int) -> float:
    """How long to wait for more before the first step; 0 means begin.

    ``coming`` requests are on their way here. One that comes alone never waits.
    """
    ends = gathering.began + min(LONGEST_HOLD, HOLD_SHARE * gathering.prefill_seconds)
    if coming == 0:
        if gathering.requests == 1:
            return 0.0
        ends = min(ends, gathering.latest + QUIET)
    return max(ends - now, 0.0)
