"""The drawings for a terminal."""

import io

import pytest

from omlxd.cli.terminal import BAR, Progress, bar, duration, percent, size, table
from omlxd.units import GiB, MiB


@pytest.mark.parametrize(
    ("used", "marks", "drawn"),
    [
        (0, (), "-" * BAR),
        (5, (), "#" * 15 + "-" * 15),
        (10, (), "#" * BAR),
        (None, (), "-" * BAR),
        (0, (9,), "-" * 27 + "|--"),
        (10, (9, 10), "#" * 27 + "|#|"),
        (0, (None,), "-" * BAR),
    ],
)
def test_a_bar_is_filled_in_proportion_with_a_stroke_at_each_mark(
    used: int | None, marks: tuple[int | None, ...], drawn: str
) -> None:
    assert bar(used, 10, marks) == f"[{drawn}]"


def test_a_bar_that_is_over_says_so_and_keeps_its_width() -> None:
    drawn = bar(30, 10, (9,))
    assert drawn.endswith(">")
    assert len(drawn) == BAR + 2


@pytest.mark.parametrize("ceiling", [None, 0])
def test_without_a_ceiling_there_is_no_bar(ceiling: int | None) -> None:
    assert bar(5, ceiling, (1,)) == ""


def test_a_table_shows_controls_and_does_not_obey_them() -> None:
    assert table(("A", "B"), [("\x1b[2J", "x\ny")]) == ["  A        B", r"  \x1b[2J  x\ny"]


def test_columns_are_as_wide_as_they_must_be_and_numbers_right_aligned() -> None:
    assert table(("NAME", ">N", ""), [("a", "1", "x"), ("longer", "20", "")]) == [
        "  NAME     N",
        "  a        1  x",
        "  longer  20",
    ]
    assert table(("NAME",), []) == ["  NAME"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m 00s"),
        (192, "3m 12s"),
        (3600, "1h 00m"),
        (18120, "5h 02m"),
        (86400, "1d 00h"),
    ],
)
def test_durations_have_two_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_unknown_is_a_dash_and_zero_is_zero() -> None:
    assert (size(None), size(0), size(GiB)) == ("-", "0B", "1.0GB")
    assert (percent(None, 1), percent(1, None), percent(1, 0), percent(0, 4)) == (
        "-",
        "-",
        "-",
        "0%",
    )


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
