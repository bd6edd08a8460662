"""A clock that goes on in sleep, a clock that stops in sleep, and how long the machine slept."""

import time
from collections.abc import Callable

# Linux: CLOCK_BOOTTIME. Darwin has no such name; its CLOCK_MONOTONIC_RAW also goes on in sleep, and
# setting the time of day does not change it (clock_gettime(3)). time.monotonic() stops in sleep on
# both.
_CONTINUOUS: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC_RAW)
# Linux: CLOCK_MONOTONIC. On Darwin that clock goes on in sleep.
_AWAKE: int = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)

JITTER = 1.0
"""Seconds. Without any sleep, two clocks that are read one after the other may differ by this."""


def continuous_clock() -> float:
    """Seconds since an arbitrary point, including time asleep. Never goes backwards."""
    return time.clock_gettime(_CONTINUOUS)


def awake_clock() -> float:
    """Seconds awake since an arbitrary point. Never goes backwards.

    Deadlines and idle times use it; otherwise all would be over when the machine wakes up.
    """
    return time.clock_gettime(_AWAKE)


class SleepWatch:
    """Tells how long the machine slept since the last call."""

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
