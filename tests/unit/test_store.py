import json
import os
import stat
from pathlib import Path

import pytest

from omlxd.store import Damaged, read_json, write_json


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [1, None, "ü"]})
    assert read_json(tmp_path / "a.json") == {"x": [1, None, "ü"]}


def test_a_file_is_for_its_owner_only(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {})
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o600


def test_an_absent_file_is_none(tmp_path: Path) -> None:
    assert read_json(tmp_path / "a.json") is None


def test_a_damaged_file_is_moved_aside_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for number in (1, 2):
        path.write_text(f"{{half {number}")
        with pytest.raises(Damaged) as caught:
            read_json(path)
        assert caught.value.aside.read_text() == f"{{half {number}"
        assert not path.exists()


def test_a_value_that_is_no_json_leaves_the_old_file_and_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, 1)
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, float("nan"))
    assert json.loads(path.read_text()) == 1
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failing_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_json(path, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="space"):
        write_json(path, 2)
    assert read_json(path) == 1
    assert os.listdir(tmp_path) == ["a.json"]
