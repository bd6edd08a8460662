"""The rotating log, the trimming of launchd's file, and following a growing log."""

import io
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlxd.service.log_files import (
    READ_BLOCK,
    RETRY,
    RotatingLog,
    Rotation,
    follow,
    last_lines,
    open_log,
    trim,
)
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
    """A disk that takes ``size`` bytes of a file, and so only a part of the last record."""
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


def test_the_last_lines_of_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {n} {'x' * 90}\n" for n in range(3 * READ_BLOCK // 100)))
    lines = last_lines(path, 1000)
    assert len(lines) == 1000
    assert lines[-1].startswith(f"line {3 * READ_BLOCK // 100 - 1} ")
    assert last_lines(path, 0) == []


@given(st.lists(st.text("ab", max_size=5), max_size=20), st.integers(1, 25))
def test_they_are_those_of_the_whole_file(lines: list[str], count: int) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        path = Path(file.name)
        path.write_text("".join(line + "\n" for line in lines))
        assert last_lines(path, count) == lines[-count:]


def test_a_missing_file_is_an_error_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        last_lines(tmp_path / "none", 5)


def script(*steps: Callable[[], object]) -> Callable[[float], None]:
    """A sleep that runs the next step at each call."""
    left = list(steps)

    def sleep(seconds: float) -> None:
        left.pop(0)()

    return sleep


def append(path: Path, text: str) -> Callable[[], object]:
    def step() -> None:
        with path.open("a") as file:
            file.write(text)

    return step


def test_what_is_appended_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    sleep = script(append(path, "one\n"), lambda: None, append(path, "two\n"))
    assert list(islice(follow(path, sleep), 2)) == ["one\n", "two\n"]


def test_a_file_that_comes_later_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    sleep = script(lambda: None, append(path, "first\n"))
    assert next(follow(path, sleep)) == "first\n"


def test_rotation_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("")

    def rotate() -> None:
        append(path, "last of the old\n")()
        path.rename(tmp_path / "log.1")
        append(path, "first of the new\n")()

    texts = list(islice(follow(path, script(rotate, lambda: None)), 2))
    assert texts == ["last of the old\n", "first of the new\n"]


def test_a_trimmed_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a long text\n")
    sleep = script(lambda: path.write_text("new\n"), lambda: None)
    assert next(follow(path, sleep)) == "new\n"
