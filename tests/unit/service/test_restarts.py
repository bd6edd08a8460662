"""The count of starts that ends a restart loop."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from omlxd.service.restarts import MOST_STARTS, WITHIN, forget, is_looping, note_start

NOW = 1_000_000.0


def test_starts_ten_seconds_apart_end_within_a_minute(tmp_path: Path) -> None:
    verdicts = [note_start(tmp_path, NOW + 10 * n) for n in range(MOST_STARTS + 1)]
    assert verdicts == [False] * MOST_STARTS + [True]


def test_a_crash_now_and_then_is_no_loop(tmp_path: Path) -> None:
    spacing = WITHIN / MOST_STARTS + 1
    assert not any(note_start(tmp_path, NOW + spacing * n) for n in range(30))


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


@given(st.lists(st.floats(NOW - 2 * WITHIN, NOW + WITHIN), max_size=20))
def test_only_starts_of_the_window_count(starts: list[float]) -> None:
    inside = [at for at in starts if NOW - WITHIN < at <= NOW]
    assert is_looping(starts, NOW) == (len(inside) > MOST_STARTS)
