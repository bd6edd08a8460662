"""A clock that goes on while the machine sleeps, one that does not, and what they tell together."""

import time
from collections.abc import Callable

# Linux: CLOCK_BOOTTIME. Darwin has no such name; there CLOCK_MONOTONIC_RAW is the clock that goes
# on in sleep and that setting the time of day does not touch (clock_gettime(3)), while
# time.monotonic() stands still in sleep on both.
_CONTINUOUS: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC_RAW)
# Linux: CLOCK_MONOTONIC. On Darwin that one goes on in sleep.
_AWAKE: int = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)

JITTER = 1.0
"""Seconds that two clocks read one after the other may differ without any sleep."""


def continuous_clock() -> float:
    """Seconds since an arbitrary point, never backwards, sleep included."""
    return time.clock_gettime(_CONTINUOUS)


def awake_clock() -> float:
    """Seconds awake since an arbitrary point, never backwards: deadlines and idleness go by it,
    or all of them would be over when the machine wakes up."""
    return time.clock_gettime(_AWAKE)


class SleepWatch:
    """Tells how long the machine slept since it was asked last."""

    def __init__(
        self,
        continuous: Callable[[], float] = continuous_clock,
        awake: Callable[[], float] = awake_clock,
    ) -> None:
        self._continuous = continuous
        self._awake = awake
        self._gap = continuous() - awake()

    def slept(self) -> float:
        """Seconds asleep since the last call (or since construction); 0.0 when it did not sleep."""
        gap = self._continuous() - self._awake()
        asleep = gap - self._gap
        if abs(asleep) <= JITTER:
            return 0.0
        self._gap = gap
        return max(0.0, asleep)
