import time

from omlxd.host.clock import SleepWatch, continuous_clock


class Clocks:
    """A machine's two clocks: one stands still in sleep."""

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


def test_the_clock_of_this_machine_never_goes_back() -> None:
    times = [continuous_clock() for _ in range(1000)]
    assert times == sorted(times)
    assert SleepWatch().slept() == 0.0
    assert continuous_clock() >= time.monotonic() - 1.0
