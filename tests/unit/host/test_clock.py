import time
from collections.abc import Callable

import pytest

from omlxd.host.clock import SleepWatch, awake_clock, continuous_clock


class Clocks:
    """The two clocks of a machine; one of them stops in sleep."""

    def __init__(self) -> None:
        self.continuous = 1000.0
        self.awake = 400.0

    def run(self, seconds: float, *, drift: float = 0.0) -> None:
        self.continuous += seconds + drift
        self.awake += seconds

    def sleep(self, seconds: float) -> None:
        self.continuous += seconds

    def watch(self) -> SleepWatch:
        return SleepWatch(lambda: self.continuous, lambda: self.awake)


def test_time_awake_is_no_sleep_however_long() -> None:
    clocks = Clocks()
    watch = clocks.watch()
    clocks.run(86_400)
    assert watch.slept() == 0.0


def test_a_sleep_is_told_once_with_its_length() -> None:
    clocks = Clocks()
    watch = clocks.watch()
    clocks.run(5)
    clocks.sleep(3600)
    clocks.run(5)
    assert watch.slept() == 3600.0
    assert watch.slept() == 0.0
    clocks.sleep(60)
    assert watch.slept() == 60.0


def test_two_clocks_read_one_after_the_other_are_no_sleep() -> None:
    clocks = Clocks()
    watch = clocks.watch()
    clocks.run(1, drift=0.9)
    assert watch.slept() == 0.0


def test_short_sleeps_that_add_up_are_not_lost() -> None:
    clocks = Clocks()
    watch = clocks.watch()
    clocks.sleep(0.75)
    assert watch.slept() == 0.0
    clocks.sleep(0.75)
    assert watch.slept() == 1.5
    assert watch.slept() == 0.0


def test_a_gap_that_shrinks_is_no_negative_sleep() -> None:
    clocks = Clocks()
    watch = clocks.watch()
    clocks.awake += 50
    assert watch.slept() == 0.0
    clocks.sleep(10)
    assert watch.slept() == 10.0


@pytest.mark.parametrize("clock", [continuous_clock, awake_clock])
def test_the_clocks_of_this_machine_never_go_back(clock: Callable[[], float]) -> None:
    times = [clock() for _ in range(1000)]
    assert times == sorted(times)


def test_what_was_slept_since_the_boot_is_between_the_two_clocks() -> None:
    assert SleepWatch().slept() == 0.0
    assert continuous_clock() >= awake_clock() - 1.0
    # The event loop uses this clock.
    assert abs(awake_clock() - time.monotonic()) < 1.0
