"""Pulling from a fake source: disk space, order, and the rest of an earlier pull."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from omlxd.cli.hub import HubFile, NotPullable, Repository
from omlxd.cli.pull import PARTIAL, pull, recorded_commit

COMMIT = "a" * 40
CONTENT = {"config.json": b"{}", "model.safetensors": b"weights"}


@dataclass
class Bar:
    done: int
    total: int
    ended: bool = False

    def add(self, count: int) -> None:
        self.done += count

    def end(self) -> None:
        self.ended = True


@dataclass
class Source:
    """Gives the missing bytes of ``CONTENT``, but fails for the names in ``failing``."""

    failing: set[str] = field(default_factory=set)
    fetched: list[tuple[str, int]] = field(default_factory=list)
    endpoint: str = "http://hub"

    def fetch(
        self, repository: object, file: HubFile, target: Path, note: Callable[[int], None]
    ) -> None:
        there = target.stat().st_size if target.exists() else 0
        self.fetched.append((file.name, there))
        rest = CONTENT[file.name][there:]
        if file.name in self.failing:
            rest = rest[:3]
        with target.open("ab") as out:
            out.write(rest)
        note(len(rest))
        if file.name in self.failing:
            raise NotPullable("the line went dead")


def repository(**sizes: int) -> Repository:
    return Repository(
        "org/name",
        COMMIT,
        tuple(
            HubFile(name, sizes.get(name.partition(".")[0], len(data)), _sha256(data))
            for name, data in CONTENT.items()
        ),
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def bars() -> list[Bar]:
    return []


@pytest.fixture
def make_bar(bars: list[Bar]) -> Any:
    def make(label: str, total: int, there: int) -> Bar:
        bars.append(Bar(there, total))
        return bars[-1]

    return make


def test_what_does_not_fit_on_the_disk_is_not_begun(tmp_path: Path, make_bar: Any) -> None:
    source: Any = Source()
    with pytest.raises(NotPullable, match="disk is too full"):
        pull(source, repository(model=10**18), tmp_path, make_bar)
    assert source.fetched == []
    assert not (tmp_path / "org").exists()


def test_a_pull_that_failed_goes_on_where_it_stopped(
    tmp_path: Path, make_bar: Any, bars: list[Bar]
) -> None:
    source: Any = Source(failing={"model.safetensors"})
    with pytest.raises(NotPullable, match="went dead"):
        pull(source, repository(), tmp_path, make_bar)
    assert not (tmp_path / "org").exists()
    assert (bars[0].done, bars[0].ended) == (2 + 3, True)
    source.failing.clear()
    source.fetched.clear()
    pulled = pull(source, repository(), tmp_path, make_bar)
    assert source.fetched == [("model.safetensors", 3)]
    assert (bars[1].done, bars[1].total) == (9, 9)
    assert recorded_commit(pulled.folder) == COMMIT
    assert list((tmp_path / PARTIAL).iterdir()) == []


def test_damaged_bytes_are_deleted_so_that_the_next_pull_can_heal(
    tmp_path: Path, make_bar: Any
) -> None:
    files = (HubFile("config.json", 2, _sha256(b"[]")), repository().files[1])
    wrong = replace(repository(), files=files)
    source: Any = Source()
    with pytest.raises(NotPullable, match=r"config\.json arrived damaged"):
        pull(source, wrong, tmp_path, make_bar)
    assert pull(source, repository(), tmp_path, make_bar).changed


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_a_pull_mends_a_folder_and_fetches_no_more_than_that_takes(
    tmp_path: Path, make_bar: Any, bars: list[Bar], damage: str
) -> None:
    source: Any = Source()
    weights = pull(source, repository(), tmp_path, make_bar).folder / "model.safetensors"
    assert not pull(source, repository(), tmp_path, make_bar).changed
    match damage:
        case "gone":
            weights.unlink()
        case "cut":
            weights.write_bytes(b"wei")
        case _:
            weights.write_bytes(b"weight!")
            (weights.parent / "config.json").unlink()
    source.fetched.clear()
    mended = pull(source, repository(), tmp_path, make_bar)
    assert mended.changed
    assert {name: (mended.folder / name).read_bytes() for name in CONTENT} == CONTENT
    fetched = {"model.safetensors"} if damage != "changed" else set(CONTENT)
    assert source.fetched == [(name, 0) for name in CONTENT if name in fetched]
    assert bars[-1].done == bars[-1].total == 9
    assert not pull(source, repository(), tmp_path, make_bar).changed


def test_a_damaged_record_counts_as_none(tmp_path: Path) -> None:
    assert recorded_commit(tmp_path) is None
    (tmp_path / ".omlxd-source.json").write_text("{")
    assert recorded_commit(tmp_path) is None
