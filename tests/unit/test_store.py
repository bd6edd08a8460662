"""State files are written whole or not at all; they are private and never silently lost."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from omlxd import store
from omlxd.daemon.listeners import write_local_key
from omlxd.store import (
    DamagedFile,
    StateFile,
    peek_json,
    read_json,
    sweep,
    write_atomically,
    write_json,
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    value = {"model": "org/ü", "sizes": [1, None, 2.5]}
    write_json(path, value)
    assert read_json(path) == value
    assert [p.name for p in path.parent.iterdir()] == ["state.json"]


def test_a_file_that_was_never_written_is_none(tmp_path: Path) -> None:
    assert read_json(tmp_path / "state.json") is None


def test_files_and_their_folder_are_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "state.json"
    old_mask = os.umask(0)
    try:
        write_json(path, {})
        write_json(path, {"again": True})
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_value_that_json_cannot_hold_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_json(path, {"good": 1})
    for bad in (float("nan"), {1, 2}, object()):
        with pytest.raises((ValueError, TypeError)):
            write_json(path, {"bad": bad})
    assert read_json(path) == {"good": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_path_that_is_no_utf8_survives(tmp_path: Path) -> None:
    """A message may name such a path, as Python reads it from the disk."""
    write_json(tmp_path / "state.json", {"path": "/caf\udce9"})
    assert read_json(tmp_path / "state.json") == {"path": "/caf\udce9"}
    (tmp_path / "state.json").read_text(encoding="utf-8")


def test_a_file_that_may_be_another_program_s_is_read_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for text, found in [("", None), ("[]", None), ('{"a": 1}', {"a": 1})]:
        path.write_text(text)
        assert peek_json(path) == found
        assert path.read_text() == text


def test_a_failed_write_leaves_the_old_value_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    write_json(path, {"good": 1})

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"new": 2})
    assert read_json(path) == {"good": 1}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": 1} x'])
def test_a_damaged_file_is_moved_aside_and_reported(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(damage)
    with pytest.raises(DamagedFile, match=r"state\.json is not valid JSON") as caught:
        read_json(path)
    assert caught.value.aside is not None
    assert caught.value.aside.read_bytes() == damage
    assert read_json(path) is None


def test_a_file_too_large_to_be_ours_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LARGEST", 10)
    path = tmp_path / "state.json"
    path.write_text('"' + "x" * 20 + '"')
    with pytest.raises(DamagedFile, match="too large"):
        read_json(path)


def test_a_link_is_replaced_and_what_it_points_to_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("1")
    path = tmp_path / "state.json"
    path.symlink_to(other)
    write_json(path, 2)
    assert other.read_text() == "1"
    assert not path.is_symlink()


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: write_json(folder / "state.json", 1),
        lambda folder: write_atomically(folder / "state.json", b"1", 0o600),
        write_local_key,
    ],
)
def test_what_interrupted_writes_left_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], object]
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    write(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", kill)
        patch.setattr(os, "unlink", kill)
        with pytest.raises(Killed):
            write(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert sweep(tmp_path) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_a_state_file_begins_empty_and_keeps_the_last_value(tmp_path: Path) -> None:
    file = StateFile(tmp_path, "state.json")
    assert (file.read(), file.trouble) == ({}, None)
    file.write({"a": 1})
    assert StateFile(tmp_path, "state.json").read() == {"a": 1}
    nowhere = StateFile(None, "state.json")
    nowhere.write({"a": 1})
    assert (nowhere.read(), nowhere.trouble) == ({}, None)


@pytest.mark.parametrize(
    ("text", "why"), [("{", "is not valid JSON"), ("[1]", "holds no JSON object")]
)
def test_a_state_file_says_why_it_reads_as_empty(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "state.json").write_text(text)
    file = StateFile(tmp_path, "state.json")
    assert file.read() == {}
    assert why in str(file.trouble)
    file.write({})
    assert file.trouble is None
    with pytest.raises(ValueError, match="JSON"):
        file.write({"bad": float("nan")})
    assert "state.json cannot be written" in str(file.trouble)
