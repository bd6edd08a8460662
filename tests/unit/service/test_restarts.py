"""The count of starts that ends a restart loop."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlxd.service.restarts import (
    MOST_STARTS,
    SHORT_LIFE,
    forget,
    is_counted,
    is_looping,
    note_start,
)

NOW = 1_000_000.0


@pytest.mark.parametrize("life", [10, 51, 60, 299, 301, SHORT_LIFE - 1])
def test_short_lives_in_a_row_end_however_long_each_one_takes(tmp_path: Path, life: float) -> None:
    verdicts = [note_start(tmp_path, NOW + life * n) for n in range(MOST_STARTS + 1)]
    assert verdicts == [False] * MOST_STARTS + [True]


def test_a_crash_now_and_then_is_no_loop(tmp_path: Path) -> None:
    assert not any(note_start(tmp_path, NOW + SHORT_LIFE * n) for n in range(30))


def test_a_long_life_begins_the_row_anew(tmp_path: Path) -> None:
    short = [NOW + 60 * n for n in range(MOST_STARTS)]
    later = [short[-1] + SHORT_LIFE + 60 * n for n in range(MOST_STARTS)]
    assert not any(note_start(tmp_path, at) for at in (*short, *later))


def test_a_person_s_start_begins_the_count_anew(tmp_path: Path) -> None:
    for n in range(MOST_STARTS + 1):
        note_start(tmp_path, NOW + n)
    forget(tmp_path)
    assert not note_start(tmp_path, NOW + 20)


def test_a_clock_set_back_does_not_keep_the_daemon_down(tmp_path: Path) -> None:
    for n in range(MOST_STARTS):
        note_start(tmp_path, NOW + n)
    assert not note_start(tmp_path, NOW - 3600)


def test_a_damaged_file_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "starts.json").write_text('{"starts": ["x", 5')
    assert not note_start(tmp_path, NOW)


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not note_start(tmp_path / "file" / "below", NOW)
    assert not is_counted(tmp_path / "file" / "below", NOW)


def test_a_start_is_known_to_be_counted(tmp_path: Path) -> None:
    assert not is_counted(tmp_path, NOW)
    note_start(tmp_path, NOW)
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
