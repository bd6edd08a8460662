"""Finding the daemon: by its address, its folder, or the installed service."""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil  # noqa: F401 - before a test makes this another platform
import pytest

from omlxd.api.key_file import LOCAL_FILE, path_in, read_keys
from omlxd.cli.client import Daemon, NotRunning, Unreachable, daemon_paths, find_key, find_url
from omlxd.cli.main import run
from omlxd.config.paths import standard_paths
from omlxd.instance import RECORD
from omlxd.service import systemd
from omlxd.service.daemon_run import take
from omlxd.service.definition import (
    AGENTS,
    UNITS,
    installed_definition,
    plist_template,
    render_plist,
)
from omlxd.service.job import LABEL, UNIT, JobSpec

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
    """As on a full disk. ``models rm`` would think that no daemon runs, and delete its files."""
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


def definition(
    home: Path | None, platform: str, environment: Mapping[str, str] | None = None
) -> bytes:
    found = standard_paths(home, None)
    job = JobSpec(
        "/python", found.config_file, found.state, found.logs, home, dict(environment or {})
    )
    return (
        systemd.render_unit(job)
        if platform == "linux"
        else render_plist(job, LABEL, plist_template())
    )


@pytest.fixture(params=["darwin", "linux"])
def elsewhere(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The home of a service that was installed with ``--home``."""
    user, home = tmp_path / "user", tmp_path / "else where"
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setattr(sys, "platform", request.param)
    folder = user / (UNITS if request.param == "linux" else AGENTS)
    folder.mkdir(parents=True)
    name = UNIT if request.param == "linux" else f"{LABEL}.plist"
    (folder / name).write_bytes(definition(home, request.param))
    (home / "state").mkdir(parents=True, mode=0o700)
    return home


def test_a_key_is_made_where_the_installed_daemon_reads_it(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["key", "add", "laptop"]) == 0
    path = path_in(elsewhere / "state")
    assert [key.name for key in read_keys(path)] == ["laptop"]
    assert str(path) in capsys.readouterr().err, "the file that was written is named"


def test_the_installed_daemon_and_its_key_are_found(elsewhere: Path) -> None:
    record = {"instance_id": "x", "pid": os.getpid(), "started_at": 1.0, "version": "1"}
    record |= {"host": "127.0.0.1", "port": 5}
    (elsewhere / "state" / RECORD).write_text(json.dumps(record))
    (elsewhere / "state" / LOCAL_FILE).write_text("omlxd_local\n")
    assert find_url(None, None, {}) == "http://127.0.0.1:5"
    assert find_key(None, None, {}) == "omlxd_local"


def test_what_is_named_wins_over_what_is_installed(elsewhere: Path) -> None:
    assert daemon_paths("/y", {"OMLXD_HOME": "/z"}) == standard_paths(Path("/y"), None)
    assert daemon_paths(None, {"OMLXD_HOME": "/z"}) == standard_paths(Path("/z"), None)
    assert daemon_paths(None, {"OMLXD_HOME": ""}) == standard_paths(elsewhere, None)


def test_the_folders_of_the_installing_shell_are_found_from_another(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed with XDG_* variables; this shell has other values, or none."""
    names = ("CONFIG", "DATA", "STATE", "CACHE")
    folders = {f"XDG_{name}_HOME": str(tmp_path / "xdg" / name.lower()) for name in names}
    with monkeypatch.context() as installing:
        for name, folder in folders.items():
            installing.setenv(name, folder)
        there = standard_paths(None, None)
        content = definition(None, sys.platform, folders)
    (written,) = (path for path in (tmp_path / "user").rglob("*") if path.is_file())
    written.write_bytes(content)
    assert daemon_paths(None, {}) == there
    assert there.state.is_relative_to(tmp_path / "xdg")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "other"))
    assert daemon_paths(None, {}) == there


def test_without_a_service_the_usual_places_are_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A Mac may have a system daemon, at a place that a test must not change.
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert daemon_paths(None, {}) == standard_paths(None, None)


def test_the_daemon_of_the_whole_mac_is_meant_by_root_and_by_who_has_none(tmp_path: Path) -> None:
    user, daemons = tmp_path / "user", tmp_path / "daemons"
    daemons.mkdir()
    (daemons / f"{LABEL}.plist").write_bytes(definition(Path("/all"), "darwin"))

    def home(uid: int) -> Path | None:
        found = installed_definition("darwin", uid, user, daemons)
        return None if found is None else found.home

    assert home(501) == Path("/all")
    (user / AGENTS).mkdir(parents=True)
    (user / AGENTS / f"{LABEL}.plist").write_bytes(definition(Path("/own"), "darwin"))
    assert home(501) == Path("/own")
    assert home(0) == Path("/all")


def test_a_state_folder_that_is_closed_to_us_is_not_taken_for_a_daemon_that_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def closed(*_: object, **__: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", closed)
    with pytest.raises(Unreachable, match=r"may not look into .*sudo"):
        find_url(None, "/h", {})
