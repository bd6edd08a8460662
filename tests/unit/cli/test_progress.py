"""Bars and lines."""

import io

from omlxd.cli.progress import Progress
from omlxd.units import MiB


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_there_is_a_line_for_each_tenth() -> None:
    out = io.StringIO()
    progress = Progress("m", 100, out=out, clock=Clock())
    for _ in range(100):
        progress.add(1)
    progress.end()
    lines = out.getvalue().splitlines()
    assert 9 <= len(lines) <= 11
    assert lines[-1] == "m  100B of 100B  100%"


def test_a_terminal_sees_a_few_pictures_a_second_on_one_line() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress("m", 1000, out=out, clock=clock)
    for _ in range(100):
        clock.now += 0.01
        progress.add(10)
    progress.end()
    text = out.getvalue()
    assert 4 <= text.count("\r") <= 8
    assert text.count("\n") == 1
    assert "[##" in text


def test_speed_and_the_time_that_is_left_come_from_the_last_seconds() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress("m", 100 * MiB, out=out, clock=clock)
    for _ in range(5):
        clock.now += 1
        progress.add(10 * MiB)
    assert "10.0MB/s  5s left" in out.getvalue()


def test_what_was_there_before_is_no_speed() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress("m", 100 * MiB, done=90 * MiB, out=out, clock=clock)
    clock.now += 2
    progress.add(2 * MiB)
    assert "1.0MB/s" in out.getvalue()


def test_nothing_to_do_is_not_divided_by() -> None:
    out = io.StringIO()
    progress = Progress("m", 0, out=out, clock=Clock())
    progress.add(0)
    progress.end()
    assert "0B" in out.getvalue()
