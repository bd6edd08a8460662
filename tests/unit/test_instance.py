"""Finding the daemon of a data folder."""

import fcntl
import os
from pathlib import Path

import pytest

from omlxd.instance import (
    InstanceRecord,
    is_alive,
    is_closed,
    is_held,
    reachable_url,
    read_record,
)


def test_a_pid_that_was_used_again_is_another_process() -> None:
    record = InstanceRecord("x", 7, 0.0, "1", process_started=500.0)
    assert is_alive(record, lambda pid: 500.9)
    assert not is_alive(record, lambda pid: 620.0)
    assert not is_alive(record, lambda pid: None)


def test_a_process_that_may_not_be_looked_at_counts_as_alive() -> None:
    assert is_alive(InstanceRecord("x", 7, 0.0, "1", process_started=500.0), lambda pid: 0.0)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"instance_id": 3, "pid": "x", "started_at": 1, "version": 1}'],
)
def test_a_damaged_record_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "instance.json").write_text(content)
    assert read_record(tmp_path) is None


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("::1", "http://[::1]:1"),
        ("192.168.1.5", "http://192.168.1.5:1"),
    ],
)
def test_the_address_is_one_that_this_machine_can_use(host: str, url: str) -> None:
    assert reachable_url(host, 1) == url


def test_a_folder_that_is_locked_itself_is_held(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    assert is_held(tmp_path)
    os.close(folder)
    assert not is_held(tmp_path)


def test_a_record_that_is_closed_to_this_user_is_told_from_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_closed(tmp_path)
    (tmp_path / "instance.json").write_text("{}")
    assert not is_closed(tmp_path)

    def closed(*_: object, **__: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", closed)
    assert is_closed(tmp_path)
