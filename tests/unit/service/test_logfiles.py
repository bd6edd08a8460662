"""The rotating log and the trimming of launchd's file."""

import io
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from omlxd.service.logfiles import RETRY, RotatingLog, Rotation, open_log, trim
from tests.unit.service.fakes import Time

SMALL = Rotation(most_bytes=100, kept=3)
LINE = "0123456789012345678901234567890123456789\n"


def small_log(folder: Path, fallback: io.StringIO | None = None, time: Time | None = None):  # type: ignore[no-untyped-def]
    clock = time or Time()
    return RotatingLog(folder / "a.log", fallback, rotation=SMALL, clock=lambda: clock.now)


def test_lines_arrive_at_once_in_a_private_file(tmp_path: Path) -> None:
    log = open_log(tmp_path / "logs", None)
    log.write("hello\n")
    path = tmp_path / "logs" / "omlxd.log"
    assert path.read_text() == "hello\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not log.isatty()
    log.close()


def test_it_rotates_before_the_limit_and_keeps_so_many(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    for n in range(20):
        log.write(f"{n:02} {LINE}")
    log.close()
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["a.log", "a.log.1", "a.log.2", "a.log.3"]
    assert all(p.stat().st_size <= 100 for p in tmp_path.iterdir())
    assert (tmp_path / "a.log").read_text().endswith(f"19 {LINE}")
    assert (tmp_path / "a.log.1").read_text().startswith("16 ")


def test_a_record_larger_than_a_file_is_kept_whole(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    log.write(LINE)
    log.write("x" * 500 + "\n")
    log.close()
    assert (tmp_path / "a.log").read_text() == "x" * 500 + "\n"


def test_an_existing_file_is_appended_to_and_made_private(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("before\n")
    (tmp_path / "a.log").chmod(0o644)
    log = small_log(tmp_path)
    log.write("after\n")
    log.close()
    assert (tmp_path / "a.log").read_text() == "before\nafter\n"
    assert stat.S_IMODE((tmp_path / "a.log").stat().st_mode) == 0o600


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    log.write("one\n")
    (tmp_path / "a.log").rename(tmp_path / "moved")
    log.write("two\n")
    log.close()
    assert (tmp_path / "a.log").read_text() == "two\n"


def test_an_unwritable_log_goes_to_the_fallback_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file, not a folder")
    fallback, time = io.StringIO(), Time()
    log = small_log(tmp_path / "blocked", fallback, time)
    log.write("one\n")
    log.write("two\n")
    said = fallback.getvalue()
    assert said.count("cannot be written") == 1
    assert said.endswith("one\ntwo\n")
    assert log.lost == 2
    log.close()


def test_a_full_disk_is_tried_again_later_and_the_loss_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.log").symlink_to("/dev/full")
    fallback, time = io.StringIO(), Time()
    log = small_log(tmp_path, fallback, time)
    log.write("one\n")
    log.write("two\n")
    assert "No space left" in fallback.getvalue()
    (tmp_path / "a.log").unlink()
    log.write("three\n")
    assert not (tmp_path / "a.log").exists(), "not tried at every record"
    time.now += RETRY
    log.write("four\n")
    assert (tmp_path / "a.log").read_text() == ('four\n{"event": "log_records_lost", "count": 3}\n')
    assert fallback.getvalue().count("cannot be written") == 1
    log.close()


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """A disk that takes ``size`` bytes of a file, and so a part of the record that goes over."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_a_full_disk_took_of_a_record_is_taken_back(tmp_path: Path) -> None:
    fallback, time = io.StringIO(), Time()
    log = small_log(tmp_path, fallback, time)
    log.write("one\n")
    with full_at(20):
        log.write(LINE)
    assert (tmp_path / "a.log").read_text() == "one\n"
    assert fallback.getvalue().endswith(LINE), "all of it"
    time.now += RETRY
    with full_at(20):
        log.write("two\n")
    assert (tmp_path / "a.log").read_text() == "one\n", "with no room to count what was lost"
    time.now += RETRY
    log.write("three\n")
    expected = 'one\nthree\n{"event": "log_records_lost", "count": 2}\n'
    assert (tmp_path / "a.log").read_text() == expected
    log.close()


def test_a_record_that_a_crash_tore_does_not_swallow_the_next(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text('one\n{"n": 2, "te')
    log = small_log(tmp_path)
    log.write("three\n")
    log.write("four\n")
    log.close()
    assert (tmp_path / "a.log").read_text() == 'one\n{"n": 2, "te\nthree\nfour\n'


def test_without_any_place_to_write_nothing_is_raised(tmp_path: Path) -> None:
    closed = io.StringIO()
    closed.close()
    for fallback in (None, closed):
        log = RotatingLog(tmp_path, fallback)
        log.write("lost\n")
        assert log.lost == 1
        log.close()


def test_odd_text_is_written_somehow(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    log.write("\ud800 모델\n")
    log.close()
    assert (tmp_path / "a.log").read_text() == "\\ud800 모델\n"


def test_a_small_file_is_not_trimmed(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    path.write_text("crash\n")
    assert trim(path, above=10, keep=5) == 0
    assert trim(tmp_path / "missing") == 0
    assert path.read_text() == "crash\n"


def test_the_tail_of_a_large_file_stays_from_a_whole_line_on(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    path.write_text("old\n" * 100 + "Fatal Python error: Aborted\n")
    assert trim(path, above=100, keep=41) > 0
    assert path.read_text() == "old\nold\nold\nFatal Python error: Aborted\n"


def test_one_long_last_line_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    path.write_text("x" * 1000 + "end\n")
    trim(path, above=100, keep=5)
    assert path.read_text() == "xend\n"


def test_a_writer_in_append_mode_goes_on_after_the_tail(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    with path.open("a") as launchd:
        launchd.write("x\n" * 1000)
        launchd.flush()
        trim(path, above=100, keep=4)
        launchd.write("next\n")
    assert path.read_text() == "x\nnext\n"


def test_trimming_follows_no_link(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("x" * 1000)
    os.symlink(target, tmp_path / "stderr")
    assert trim(tmp_path / "stderr", above=10, keep=5) == 0
    assert target.stat().st_size == 1000


@given(st.binary(max_size=400), st.integers(1, 100), st.integers(0, 100))
def test_what_stays_is_an_end_of_what_was(content: bytes, keep: int, more: int) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        path = Path(file.name)
        path.write_bytes(content)
        removed = trim(path, above=keep + more, keep=keep)
        left = path.read_bytes()
    assert content.endswith(left)
    assert removed == len(content) - len(left)
    assert (removed > 0) == (len(content) > keep + more)
