"""Only one daemon per data folder, and the record of the holder."""

import errno
import fcntl
import json
import os
import stat
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from omlxd.errors import AlreadyRunning, ConfigError
from omlxd.instance import ProcessStart, is_held, read_record, running
from omlxd.service.daemon_run import InstanceLock, take


def take_it(state: Path, started: ProcessStart = lambda pid: 50.0) -> InstanceLock:
    return take(state, version="1.0", interpreter="/python", now=1000.0, started=started)


def test_the_record_tells_who_and_where(tmp_path: Path) -> None:
    lock = take_it(tmp_path)
    lock.announce("0.0.0.0", 8484)
    record = read_record(tmp_path)
    assert record is not None
    assert (record.pid, record.version, record.url) == (os.getpid(), "1.0", "http://127.0.0.1:8484")
    lock.release()
    assert read_record(tmp_path) is None


def test_a_second_daemon_is_told_who_holds_the_folder_and_since_when(tmp_path: Path) -> None:
    first = take_it(tmp_path)
    first.announce("127.0.0.1", 8484)
    with pytest.raises(AlreadyRunning) as caught:
        take_it(tmp_path)
    assert f"pid {os.getpid()} at http://127.0.0.1:8484, since 1970-01-01" in str(caught.value)
    assert caught.value.details["pid"] == os.getpid()
    first.release()
    take_it(tmp_path).release()


def test_a_holder_without_a_record_is_admitted_to_be_unknown(tmp_path: Path) -> None:
    first = take_it(tmp_path)
    (tmp_path / "instance.json").unlink()
    with pytest.raises(AlreadyRunning, match="left no record"):
        take_it(tmp_path)
    first.release()


def test_what_a_killed_daemon_left_is_stale_and_taken_over(tmp_path: Path) -> None:
    left = {"instance_id": "old", "pid": 999, "started_at": 5.0, "version": "0.9"}
    (tmp_path / "instance.json").write_text(json.dumps(left))
    assert running(tmp_path, lambda pid: None) is None
    with capture_logs() as logs:
        lock = take_it(tmp_path)
    killed = {"event": "previous_instance_was_killed", "pid": 999, "instance": "old"}
    assert [log for log in logs if killed.items() <= log.items()]
    assert lock.record.instance_id != "old"
    lock.release()


def test_this_very_process_is_alive_by_the_system_s_word(tmp_path: Path) -> None:
    lock = take(tmp_path, version="1", interpreter="/p", now=1.0)
    assert running(tmp_path) == lock.record
    lock.release()


def test_files_are_the_owner_s_alone(tmp_path: Path) -> None:
    state = tmp_path / "deep" / "state"
    lock = take_it(state)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    for name in ("omlxd.lock", "instance.json"):
        assert stat.S_IMODE((state / name).stat().st_mode) == 0o600
    lock.release()


def test_a_folder_that_cannot_be_used_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"state folder .*cannot be used"):
        take_it(tmp_path / "file" / "state")


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "omlxd.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        take_it(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_on_a_full_disk_the_folder_itself_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def full(path: object, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(path, flags, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", full)
    lock = take_it(tmp_path)
    with pytest.raises(AlreadyRunning):
        take_it(tmp_path)
    lock.release()
    take_it(tmp_path).release()


def test_on_a_volume_without_locks_the_record_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    first = take_it(tmp_path)
    with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
        take_it(tmp_path)
    first.release()
    take_it(tmp_path).release()


def test_whoever_looks_whether_the_folder_is_held_keeps_no_daemon_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_held(tmp_path)
    take_it(tmp_path).release()
    assert not is_held(tmp_path)
    looking = os.open(tmp_path / "omlxd.lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: os.close(looking))
    lock = take_it(tmp_path)
    assert is_held(tmp_path)
    lock.release()
