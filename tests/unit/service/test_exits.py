"""Which endings a supervisor may restart, and the count of starts that ends a restart loop."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlxd.errors import (
    AlreadyRunning,
    ConfigError,
    EngineDied,
    OmlxdError,
    PortTaken,
    StateUnreadable,
)
from omlxd.service.exits import (
    MOST_STARTS,
    PERMANENT,
    SHORT_LIFE,
    Ending,
    count_start,
    ending_of,
    exit_code,
    forget_starts,
    is_counted,
    is_looping,
)


@pytest.mark.parametrize(
    ("error", "by_hand", "supervised"),
    [
        (None, 0, 0),
        (ConfigError(["port: must be a number"]), 78, 0),
        (PortTaken("taken"), 1, 0),
        (AlreadyRunning("running"), 1, 0),
        (EngineDied("dead"), 75, 75),
        (StateUnreadable("damaged"), 75, 75),
        (RuntimeError("a fault of ours"), 75, 75),
    ],
)
def test_an_error_has_its_code(error: BaseException | None, by_hand: int, supervised: int) -> None:
    """T65: KeepAlive restarts every non-zero exit, so a lasting mistake exits with 0."""
    ending = ending_of(error)
    assert exit_code(ending, supervised=False) == by_hand
    assert exit_code(ending, supervised=True) == supervised


def test_no_permanent_ending_asks_a_supervisor_for_a_restart() -> None:
    assert {exit_code(e, supervised=True) for e in PERMANENT} == {0}


def test_by_hand_no_error_looks_like_success() -> None:
    assert all(exit_code(e, supervised=False) != 0 for e in Ending if e is not Ending.STOPPED)


def test_every_error_of_the_tree_has_an_ending() -> None:
    assert ending_of(OmlxdError("any")) is Ending.BROKEN


NOW = 1_000_000.0


@pytest.mark.parametrize("life", [10, 51, 60, 299, 301, SHORT_LIFE - 1])
def test_short_lives_in_a_row_end_however_long_each_one_takes(tmp_path: Path, life: float) -> None:
    verdicts = [count_start(tmp_path, NOW + life * n) for n in range(MOST_STARTS + 1)]
    assert verdicts == [False] * MOST_STARTS + [True]


def test_a_crash_now_and_then_is_no_loop(tmp_path: Path) -> None:
    assert not any(count_start(tmp_path, NOW + SHORT_LIFE * n) for n in range(30))


def test_a_long_life_begins_the_row_anew(tmp_path: Path) -> None:
    short = [NOW + 60 * n for n in range(MOST_STARTS)]
    later = [short[-1] + SHORT_LIFE + 60 * n for n in range(MOST_STARTS)]
    assert not any(count_start(tmp_path, at) for at in (*short, *later))


def test_a_person_s_start_begins_the_count_anew(tmp_path: Path) -> None:
    for n in range(MOST_STARTS + 1):
        count_start(tmp_path, NOW + n)
    forget_starts(tmp_path)
    assert not count_start(tmp_path, NOW + 20)


def test_a_clock_set_back_does_not_keep_the_daemon_down(tmp_path: Path) -> None:
    for n in range(MOST_STARTS):
        count_start(tmp_path, NOW + n)
    assert not count_start(tmp_path, NOW - 3600)


def test_a_damaged_file_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "starts.json").write_text('{"starts": ["x", 5')
    assert not count_start(tmp_path, NOW)


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not count_start(tmp_path / "file" / "below", NOW)
    assert not is_counted(tmp_path / "file" / "below", NOW)


def test_a_start_is_known_to_be_counted(tmp_path: Path) -> None:
    assert not is_counted(tmp_path, NOW)
    count_start(tmp_path, NOW)
    assert is_counted(tmp_path, NOW)
    assert not is_counted(tmp_path, NOW + 1)


@given(st.lists(st.floats(NOW - 20 * SHORT_LIFE, NOW + SHORT_LIFE), max_size=20))
def test_only_a_row_of_more_than_the_allowed_starts_is_a_loop(starts: list[float]) -> None:
    last = [*starts, NOW][-MOST_STARTS - 1 :]
    gaps = [later - earlier for earlier, later in pairwise(last)]
    expected = len(last) > MOST_STARTS and all(0 <= gap < SHORT_LIFE for gap in gaps)
    assert is_looping((*starts, NOW), NOW) == expected


@given(st.floats(0.01, SHORT_LIFE - 1), st.integers(0, 20))
def test_evenly_spaced_short_lives_are_a_loop_from_the_seventh_on(gap: float, many: int) -> None:
    starts = [NOW - gap * n for n in range(many)][::-1]
    assert is_looping(starts, NOW) == (many > MOST_STARTS)
