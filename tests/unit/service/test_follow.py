"""Reading the end of a log and following it."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlxd.service.follow import BLOCK, follow, last_lines


def test_the_last_lines_of_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {n} {'x' * 90}\n" for n in range(3 * BLOCK // 100)))
    lines = last_lines(path, 1000)
    assert len(lines) == 1000
    assert lines[-1].startswith(f"line {3 * BLOCK // 100 - 1} ")
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
    """A sleep that does the next step each time."""
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
