"""Finding the daemon."""

import json
import os
import re
from pathlib import Path

import pytest

from omlxd.cli.client import Daemon, NotRunning, Unreachable, find_url
from omlxd.service.daemon_run import take

GONE = 2**22 + 1
"""Above the largest process id of Linux and macOS."""


def leave(home: Path, **record: object) -> None:
    (home / "state").mkdir(parents=True, exist_ok=True)
    whole = {"instance_id": "x", "started_at": 1.0, "version": "1", **record}
    (home / "state" / "instance.json").write_text(json.dumps(whole))


@pytest.mark.parametrize(
    ("named", "url"),
    [
        ("http://mac:1", "http://mac:1"),
        ("http://mac:1/", "http://mac:1"),
        ("http://mac:1/v1", "http://mac:1"),
        ("mac:1", "http://mac:1"),
        ("https://mac", "https://mac"),
    ],
)
def test_a_named_address_is_taken_as_people_write_it(named: str, url: str) -> None:
    assert find_url(named, None, {}) == url
    assert find_url(None, None, {"OMLXD_URL": named}) == url


@pytest.mark.parametrize("url", ["http://[::1", "http://mac:port", "http://a..b", "http://xn--a"])
def test_an_address_that_is_none_is_said_so_in_a_sentence(url: str) -> None:
    with pytest.raises(Unreachable, match=re.escape(url)):
        Daemon(url).get("/status")
    with pytest.raises(Unreachable, match=re.escape(url)):
        next(Daemon(url).events("/v1/memory-guard/events"))


def test_a_key_that_cannot_be_sent_is_said_so_in_a_sentence() -> None:
    with pytest.raises(Unreachable, match="OMLXD_KEY"):
        Daemon("http://mac:1", "schlüssel")


def test_a_flag_wins_over_the_environment() -> None:
    assert find_url("http://a:1", None, {"OMLXD_URL": "http://b:1"}) == "http://a:1"


def test_else_the_instance_file_of_the_home_is_read(tmp_path: Path) -> None:
    leave(tmp_path, pid=os.getpid(), host="127.0.0.1", port=5)
    assert find_url(None, str(tmp_path), {}) == "http://127.0.0.1:5"
    assert find_url(None, None, {"OMLXD_HOME": str(tmp_path)}) == "http://127.0.0.1:5"


def test_without_an_instance_file_it_says_that_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"omlxd is not running .*omlxd serve"):
        find_url(None, str(tmp_path), {})


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"'])
def test_a_damaged_instance_file_is_as_none(tmp_path: Path, text: str) -> None:
    leave(tmp_path)
    (tmp_path / "state" / "instance.json").write_text(text)
    with pytest.raises(Unreachable, match="not running"):
        find_url(None, str(tmp_path), {})


@pytest.mark.parametrize("pid", [GONE, 0, -1, None, "7"])
def test_an_instance_file_of_a_dead_process_is_stale(tmp_path: Path, pid: object) -> None:
    leave(tmp_path, pid=pid, host="127.0.0.1", port=5)
    with pytest.raises(Unreachable, match="is gone"):
        find_url(None, str(tmp_path), {})


def test_a_daemon_that_has_not_opened_its_port_is_said_to_start(tmp_path: Path) -> None:
    leave(tmp_path, pid=os.getpid(), host=None)
    with pytest.raises(Unreachable, match="has not opened its port yet"):
        find_url(None, str(tmp_path), {})


@pytest.mark.parametrize("left", [None, GONE])
def test_a_daemon_that_could_not_record_itself_is_not_said_to_be_off(
    tmp_path: Path, left: int | None
) -> None:
    """As on a full disk. ``models rm`` would take it for off, and delete under its feet."""
    state = tmp_path / "state"
    lock = take(state, version="1", interpreter="/python", now=1.0)
    (state / "instance.json").unlink()
    if left is not None:
        leave(tmp_path, pid=left, host="127.0.0.1", port=5)
    with pytest.raises(Unreachable, match=r"its lock is held.*instance\.json.*--url") as caught:
        find_url(None, str(tmp_path), {})
    assert not isinstance(caught.value, NotRunning)
    lock.release()
    with pytest.raises(NotRunning):
        find_url(None, str(tmp_path), {})
