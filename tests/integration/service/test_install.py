"""The installation against a stand-in launchctl with real processes: T65, T66, T67."""

import os
import plistlib
import stat
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from omlxd.cli import service
from omlxd.errors import ServiceFailed
from omlxd.service import exits
from omlxd.service.exits import Ending
from tests.integration.service.conftest import GUI, UID, USER, Mac

Until = Callable[[Callable[[], bool]], None]
NEVER = exits.LastExit(0.0, 0, None, Ending.STOPPED, 0, None, None, True)


def test_a_first_installation_runs_and_is_healthy(
    mac: Mac, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mac.omlxd("install") == 0
    job, record = mac.job(), mac.record()
    assert job is not None
    assert job["pid"] == record["pid"]
    assert "installed and healthy: http://127.0.0.1:" in capsys.readouterr().out
    keys = plistlib.loads(mac.plist.read_bytes())
    assert keys["ProgramArguments"][0] == str(mac.python)
    assert keys["ProgramArguments"][-2:] == ["--home", str(mac.home)]
    assert stat.S_IMODE(mac.plist.stat().st_mode) == 0o644
    assert stat.S_IMODE(mac.state.stat().st_mode) == 0o700
    verbs = [verb for verb, _ in mac.calls()]
    assert verbs.index("enable") < verbs.index("bootstrap") < verbs.index("kickstart")


def test_the_job_gets_what_its_definition_says(mac: Mac) -> None:
    mac.omlxd("install")
    pid = mac.record()["pid"]
    process = psutil.Process(pid)
    assert os.path.samefile(process.cwd(), mac.state)
    assert process.environ()["PYTHONFAULTHANDLER"] == "1"
    assert httpx.get(f"{mac.url}/health", timeout=60).json()["umask"] == 0o077
    for name in ("launchd-stdout.log", "launchd-stderr.log"):
        assert stat.S_IMODE((mac.home / "logs" / name).stat().st_mode) == 0o600


def test_installing_twice_changes_nothing(mac: Mac) -> None:
    mac.omlxd("install")
    first = mac.record()
    mac.forget_calls()
    assert mac.omlxd("install") == 0
    assert mac.record() == first
    assert {verb for verb, _ in mac.calls()} <= {"print", "list"}


def test_a_new_definition_replaces_the_running_job(mac: Mac) -> None:
    """T66: already bootstrapped; bootout is asynchronous, and bootstrap waits for its end."""
    mac.omlxd("install")
    first = mac.record()
    mac.python = mac.python.rename(mac.python.with_name("python-of-another-place"))
    mac.scenario(draining=0.5)
    mac.forget_calls()
    assert mac.omlxd("install") == 0
    assert mac.record()["instance_id"] != first["instance_id"]
    calls = mac.calls()
    bootout = calls.index(("bootout", 0))
    assert ("print", 0) in calls[bootout:], "it was polled while draining"
    gone = calls.index(("print", 113), bootout)
    assert gone < calls.index(("bootstrap", 0))


def test_another_version_of_the_same_job_is_restarted(mac: Mac) -> None:
    mac.config('version = "0.0.9"\n')
    mac.omlxd("install")
    first = mac.record()
    mac.config("")
    mac.forget_calls()
    assert mac.omlxd("install") == 0
    assert mac.record()["instance_id"] != first["instance_id"]
    assert ("kill", 0) in mac.calls()
    assert "bootstrap" not in [verb for verb, _ in mac.calls()]


def test_a_restart_can_be_asked_for_when_files_were_replaced(mac: Mac) -> None:
    """T67: an upgrade that keeps the version."""
    mac.omlxd("install", "--restart")
    first = mac.record()
    assert mac.omlxd("install", "--restart") == 0
    assert mac.record()["instance_id"] != first["instance_id"]


@pytest.mark.parametrize("code", [5, 37, 17, 119])
def test_a_passing_refusal_of_bootstrap_is_tried_again(mac: Mac, code: int) -> None:
    mac.scenario(faults=[{"verb": "bootstrap", "code": code, "times": 3}])
    assert mac.omlxd("install") == 0
    assert [c for v, c in mac.calls() if v == "bootstrap"] == [code, code, code, 0]


def test_bootstrap_that_works_and_says_37_is_taken_for_done(mac: Mac) -> None:
    mac.scenario(faults=[{"verb": "bootstrap", "code": 37, "effect": True}])
    assert mac.omlxd("install") == 0
    assert [c for v, c in mac.calls() if v == "bootstrap"] == [37]


def test_bootstrap_that_never_works_is_explained_and_leaves_nothing(mac: Mac) -> None:
    mac.scenario(faults=[{"verb": "bootstrap", "code": 5, "times": 9}])
    with pytest.raises(ServiceFailed, match=r"(?s)Login Items.*Nothing was installed"):
        mac.omlxd("install")
    assert len([v for v, _ in mac.calls() if v == "bootstrap"]) == 5
    assert not mac.plist.exists()


def test_a_job_that_launchd_loads_and_forgets_to_start_is_kicked(mac: Mac) -> None:
    mac.scenario(never_spawns=True)
    assert mac.omlxd("install") == 0
    assert mac.job() is not None


def test_a_disabled_job_is_enabled_first(mac: Mac) -> None:
    mac.launchctl("disable", GUI)
    assert mac.omlxd("install") == 0
    assert ("bootstrap", 119) not in mac.calls()


@pytest.mark.parametrize("code", [112, 125])
def test_without_a_gui_session_the_job_goes_to_the_background_domain(
    mac: Mac, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """T66: over SSH."""
    domains = {f"gui/{UID}": code, f"user/{UID}": 0}
    mac.scenario(domains=domains, session=f"user/{UID}")
    assert mac.omlxd("install") == 0
    assert mac.job(USER) is not None
    assert "does not start at boot" in " ".join(capsys.readouterr().out.split())
    assert mac.omlxd("stop") == 0
    assert mac.job(USER) is None


def test_without_any_session_a_daemon_is_offered(mac: Mac) -> None:
    """T66."""
    mac.scenario(domains={f"gui/{UID}": 125, f"user/{UID}": 112})
    with pytest.raises(ServiceFailed, match="--system --user NAME"):
        mac.omlxd("install")
    assert not mac.plist.exists()


def test_a_home_on_an_external_disk_is_offered_a_daemon(mac: Mac) -> None:
    """T66."""
    mac.user_home = Path("/Volumes/Big/ann")
    with pytest.raises(ServiceFailed, match="--system --user NAME"):
        mac.omlxd("install")


def test_a_job_in_the_background_domain_moves_to_the_gui_one(mac: Mac) -> None:
    mac.scenario(domains={f"gui/{UID}": 125, f"user/{UID}": 0}, session=f"user/{UID}")
    mac.omlxd("install")
    mac.scenario()
    assert mac.omlxd("install") == 0
    assert mac.job(USER) is None
    assert mac.job(GUI) is not None


def test_a_wrong_configuration_is_named_and_nothing_stays(mac: Mac) -> None:
    mac.config("nonsense = 1\n")
    with pytest.raises(ServiceFailed, match=r"(?s)nonsense: unknown key.*Nothing was installed"):
        mac.omlxd("install")
    assert not mac.plist.exists()
    assert mac.job() is None
    ended = exits.read_last_exit(mac.state)
    assert ended is not None
    assert (ended.ending, ended.code) == (Ending.CONFIG, 0)


def test_a_taken_port_is_named_and_never_looped_on(mac: Mac, taken_port: int) -> None:
    """T65: KeepAlive must not start it again and again."""
    mac.config(f"port = {taken_port}\n")
    with pytest.raises(ServiceFailed, match=f"Port {taken_port} on 127.0.0.1 is taken by"):
        mac.omlxd("install")
    ended = exits.read_last_exit(mac.state)
    assert ended is not None
    assert (ended.error, ended.code) == ("port_taken", 0)


def test_a_taken_port_after_login_ends_once(mac: Mac, taken_port: int, until: Until) -> None:
    """T65: the same with the job left loaded, as after a reboot."""
    mac.omlxd("install")
    mac.omlxd("stop")
    mac.config(f"port = {taken_port}\n")
    mac.launchctl("bootstrap", f"gui/{UID}", str(mac.plist))
    until(lambda: (exits.read_last_exit(mac.state) or NEVER).error == "port_taken")
    until(lambda: (mac.job() or {}).get("pid") is None)
    job = mac.job()
    assert job is not None
    assert (job["runs"], job["last_exit"], job["start"]) == (1, 0, False)


def test_a_crash_at_every_start_ends_too(mac: Mac, until: Until) -> None:
    """A native abort cannot call itself permanent, so starts are counted."""
    mac.omlxd("install")
    mac.omlxd("stop")
    mac.config('mode = "broken"\n')
    mac.launchctl("bootstrap", f"gui/{UID}", str(mac.plist))
    until(lambda: (exits.read_last_exit(mac.state) or NEVER).ending is Ending.LOOPING)
    until(lambda: (mac.job() or {}).get("pid") is None)
    job = mac.job()
    assert job is not None
    assert job["runs"] == 7
    assert job["start"] is False
    mac.config("")
    assert mac.omlxd("start") == 0


def test_a_stale_process_on_the_port_is_told_apart(mac: Mac) -> None:
    mac.config('claim = "somebody-else"\n')
    mac.within = 4.0
    with pytest.raises(ServiceFailed, match="answered by another omlxd"):
        mac.omlxd("install")
    assert mac.job() is None


def test_a_daemon_run_by_hand_is_named(mac: Mac, until: Until) -> None:
    mac.config("")
    by_hand = subprocess.Popen(
        [mac.python, "-m", "omlxd", "serve", "--config", mac.home / "config.toml"],
        env={**os.environ, "OMLXD_HOME": str(mac.home)},
    )
    try:
        until(lambda: (mac.state / "instance.json").exists())
        with pytest.raises(ServiceFailed, match=f"already running.*pid {by_hand.pid}"):
            mac.omlxd("install")
        assert by_hand.poll() is None
        assert mac.record()["pid"] == by_hand.pid
    finally:
        by_hand.terminate()
        assert by_hand.wait(60) == 0


def test_a_failed_update_brings_the_previous_job_back(mac: Mac) -> None:
    mac.omlxd("install")
    before = mac.plist.read_bytes()
    broken = mac.python.with_name("broken-python")
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    good, mac.python = mac.python, broken
    mac.within = 4.0
    with pytest.raises(ServiceFailed, match="previous service was restored and runs"):
        mac.omlxd("install")
    assert mac.plist.read_bytes() == before
    job = mac.job()
    assert job is not None
    assert job["keys"]["ProgramArguments"][0] == str(good)
    assert job["pid"] == mac.record()["pid"]


def test_log_files_that_launchd_cannot_open_are_named(mac: Mac) -> None:
    """78: a folder where the log file should be, as a left-over of another user would be."""
    (mac.home / "logs" / "launchd-stderr.log").mkdir(parents=True)
    mac.within = 2.0
    with pytest.raises(ServiceFailed, match="could not open the log files"):
        mac.omlxd("install")


def test_two_installations_at_once_make_one_job(mac: Mac) -> None:
    codes: list[int] = []
    threads = [threading.Thread(target=lambda: codes.append(mac.omlxd("install"))) for _ in "12"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert codes == [0, 0]
    assert [v for v, _ in mac.calls()].count("bootstrap") == 1
    job = mac.job()
    assert job is not None
    assert job["runs"] == 1


def test_settings_survive_an_upgrade_and_a_new_installation(mac: Mac) -> None:
    """T67."""
    mac.config("port = 0 # mine\n")
    mac.omlxd("install")
    mac.omlxd("uninstall")
    assert not mac.plist.exists()
    mac.omlxd("install")
    assert (mac.home / "config.toml").read_text() == "port = 0 # mine\n"


def test_a_python_that_vanishes_is_refused_unless_forced(mac: Mac) -> None:
    context = mac.context("install")
    doomed = replace(context.python, throwaway=(str(mac.python.parent),))
    with pytest.raises(ServiceFailed, match=r"(?s)cleaned by others.*--force installs it"):
        service.perform(replace(context, python=doomed))
    assert not mac.plist.exists()
    forced = replace(mac.context("install", "--force"), python=doomed)
    assert service.perform(forced) == 0
    rosetta = replace(doomed, machine="x86_64")
    with pytest.raises(ServiceFailed, match="Rosetta"):
        service.perform(replace(forced, python=rosetta))


def test_a_dry_run_touches_nothing(mac: Mac, capsys: pytest.CaptureFixture[str]) -> None:
    assert mac.omlxd("install", "--dry-run") == 0
    keys = plistlib.loads(capsys.readouterr().out.encode())
    assert keys["Label"] == "io.github.omlxd.omlxd"
    assert not mac.plist.exists()
    assert not mac.home.exists()
