"""Starting, stopping, restarting, looking at and removing an installed service."""

import json
import os
import plistlib
import pwd
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from omlxd.cli import service
from omlxd.errors import ServiceFailed
from omlxd.service import install
from omlxd.service.definition import plist_template, render_plist
from omlxd.service.job import LABEL, Account
from omlxd.service.launchd import SYSTEM, LaunchdJob
from tests.integration.service.conftest import GUI, Mac

Until = Callable[[Callable[[], bool]], None]
Said = pytest.CaptureFixture[str]


def test_stop_keeps_the_definition_and_start_brings_it_back(mac: Mac, capsys: Said) -> None:
    mac.omlxd("install")
    first = mac.record()
    assert mac.omlxd("stop") == 0
    assert mac.job() is None
    assert mac.plist.exists()
    assert mac.omlxd("status") == 3
    assert "installed and stopped" in capsys.readouterr().out
    assert mac.omlxd("start") == 0
    assert mac.record()["instance_id"] != first["instance_id"]
    assert mac.omlxd("start") == 0, "starting what runs is fine"


def test_stopping_what_does_not_run_is_fine(mac: Mac, capsys: Said) -> None:
    assert mac.omlxd("stop") == 0
    assert "was not running" in capsys.readouterr().out


def test_a_disabled_service_stays_off_until_it_is_started(mac: Mac) -> None:
    mac.omlxd("install")
    assert mac.omlxd("stop", "--disable") == 0
    assert mac.launchctl("bootstrap", "gui/501", str(mac.plist)) == 119
    assert mac.omlxd("start") == 0


def test_starting_what_is_not_installed_says_so(mac: Mac) -> None:
    with pytest.raises(ServiceFailed, match="omlxd service install"):
        mac.omlxd("start")


def test_restart_lets_the_old_instance_end_by_itself(mac: Mac) -> None:
    mac.omlxd("install")
    first = mac.record()
    mac.forget_calls()
    assert mac.omlxd("restart") == 0
    second = mac.record()
    assert second["pid"] != first["pid"]
    verbs = [verb for verb, _ in mac.calls()]
    assert verbs.index("kill") < verbs.index("kickstart")
    assert "bootout" not in verbs
    job = mac.job()
    assert job is not None
    assert job["runs"] == 2


@pytest.mark.parametrize("verb", ["install", "restart"])
def test_a_healthy_daemon_without_a_record_is_replaced_by_one_with(
    mac: Mac, capsys: Said, verb: str
) -> None:
    """Started again by launchd on a full disk, it could not write one."""
    mac.omlxd("install")
    first = mac.record()
    (mac.state / "instance.json").unlink()
    assert mac.omlxd("status") == 3
    assert f"runs (pid {first['pid']}) without a record" in capsys.readouterr().out
    assert mac.omlxd(verb) == 0
    assert mac.record()["instance_id"] != first["instance_id"]


def test_kill_nine_is_restarted_and_leaves_a_stale_record_that_is_recognised(
    mac: Mac, until: Until, capsys: Said
) -> None:
    mac.omlxd("install")
    first = mac.record()
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: mac.record()["instance_id"] != first["instance_id"])
    until(lambda: mac.record()["port"] is not None)
    assert mac.omlxd("status") == 0
    assert "healthy" in capsys.readouterr().out


def test_status_tells_of_a_killed_instance_that_nobody_restarted(mac: Mac, capsys: Said) -> None:
    mac.omlxd("install")
    record = mac.record()
    mac.omlxd("stop")
    (mac.state / "instance.json").write_text(json.dumps(record))
    assert mac.omlxd("status") == 3
    assert f"pid {record['pid']}, which ran since" in capsys.readouterr().out


def test_status_is_plain_data_for_programs(mac: Mac, capsys: Said) -> None:
    mac.omlxd("install")
    capsys.readouterr()
    assert mac.omlxd("status", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["healthy"] is True
    assert status["job"]["pid"] == status["instance"]["pid"] == mac.record()["pid"]
    assert status["interpreter"] == str(mac.python)


def test_status_names_an_interpreter_that_vanished(mac: Mac, capsys: Said) -> None:
    mac.omlxd("install")
    mac.omlxd("stop")
    mac.python.unlink()
    assert mac.omlxd("status") == 3
    assert "its Python is gone: run `omlxd service install`" in capsys.readouterr().out


def test_status_of_nothing_says_what_to_do(mac: Mac, capsys: Said) -> None:
    assert mac.omlxd("status") == 3
    said = capsys.readouterr().out
    assert "not installed" in said
    assert "omlxd service install" in said


def test_logs_shows_the_end(mac: Mac, capsys: Said) -> None:
    (mac.home / "logs").mkdir(parents=True)
    (mac.home / "logs" / "omlxd.log").write_text("".join(f"line {n}\n" for n in range(100)))
    assert mac.omlxd("logs", "-n", "2") == 0
    assert capsys.readouterr().out == "line 98\nline 99\n"
    assert mac.omlxd("logs", "--stderr") == 1


def test_uninstall_keeps_configuration_and_data(mac: Mac, capsys: Said) -> None:
    mac.omlxd("install")
    assert mac.omlxd("uninstall") == 0
    assert mac.job() is None
    assert not mac.plist.exists()
    assert (mac.home / "config.toml").exists()
    assert mac.state.is_dir()
    assert mac.omlxd("uninstall") == 0
    assert "was not installed" in capsys.readouterr().out


def test_purge_deletes_ours_and_keeps_models_and_strangers(mac: Mac) -> None:
    mac.omlxd("install")
    (mac.home / "models").mkdir()
    (mac.home / "logs" / "other.log").write_text("not ours")
    (mac.home / "logs" / "omlxd.log.1").write_text("ours")
    assert mac.omlxd("uninstall", "--purge") == 0
    assert {p.name for p in mac.home.iterdir()} == {"models", "logs"}
    assert [p.name for p in (mac.home / "logs").iterdir()] == ["other.log"]


def test_purge_refuses_a_home_folder(mac: Mac) -> None:
    mac.home = mac.user_home
    (mac.user_home / "cache").mkdir()
    with pytest.raises(ServiceFailed, match="not omlxd's alone"):
        mac.omlxd("uninstall", "--purge")
    assert (mac.user_home / "cache").exists()


def test_a_job_that_ignores_sigterm_is_ended_by_force(mac: Mac) -> None:
    mac.config('mode = "deaf"\n')
    mac.omlxd("install")
    assert mac.omlxd("stop") == 0
    assert mac.job() is None


def test_the_service_is_found_without_being_told_its_home(mac: Mac, capsys: Said) -> None:
    mac.omlxd("install")
    first = mac.record()
    for verb, code in (("status", 0), ("restart", 0), ("stop", 0), ("status", 3), ("start", 0)):
        assert service.perform(mac.context(verb, home=False)) == code, verb
    assert mac.record()["instance_id"] != first["instance_id"]
    assert service.perform(mac.context("logs", home=False)) == 0
    assert mac.record()["instance_id"] in capsys.readouterr().out
    assert service.perform(mac.context("install", home=False)) == 0
    assert plistlib.loads(mac.plist.read_bytes())["ProgramArguments"][-1] == str(mac.home)


def test_a_home_that_is_not_the_service_s_starts_and_stops_nothing(mac: Mac, capsys: Said) -> None:
    mac.omlxd("install")
    here, mac.home = mac.home, mac.home.with_name("another")
    mac.forget_calls()
    for verb in ("start", "restart", "stop", "uninstall"):
        with pytest.raises(ServiceFailed, match=f"another data folder, {here}/state"):
            mac.omlxd(verb)
    assert mac.omlxd("status") == 3
    assert f"installed with another data folder: {here}/state" in capsys.readouterr().out
    assert {verb for verb, _ in mac.calls()} <= {"print", "list"}


def test_a_failed_move_to_another_home_brings_the_service_back_to_its_own(mac: Mac) -> None:
    mac.omlxd("install")
    first = mac.record()
    here, mac.home = mac.home, mac.home.with_name("another")
    mac.config("nonsense = 1\n")
    with pytest.raises(ServiceFailed, match=r"(?s)unknown key.*was restored and runs"):
        mac.omlxd("install")
    mac.home = here
    assert mac.record()["instance_id"] != first["instance_id"]
    assert mac.omlxd("status") == 0


def test_a_system_daemon_runs_for_its_account_and_has_no_agent_keys(mac: Mac) -> None:
    mac.scenario(session="system")
    entry = pwd.getpwuid(os.getuid())
    context = mac.context("install", "--system", "--user", "somebody")
    account = Account("somebody", entry.pw_uid, entry.pw_gid, mac.user_home)
    machine = context.machine
    folder = machine.system_folder
    job = replace(mac.context("install").job(), home=mac.home, account=account, environment={})
    supervisor = LaunchdJob(machine.launchctl, SYSTEM, LABEL, folder, machine.clock)
    definition = render_plist(job, LABEL, plist_template())
    request = install.InstallRequest(job=job, definition=definition, version="0.1.0")
    done = install.install(supervisor, request, context.watch(), machine.clock)
    assert mac.job(f"system/{LABEL}") is not None
    keys = plistlib.loads((folder / f"{LABEL}.plist").read_bytes())
    assert keys["UserName"] == "somebody"
    assert keys["EnvironmentVariables"]["HOME"] == str(mac.user_home)
    assert "SoftResourceLimits" not in keys
    assert "LimitLoadToSessionType" not in keys
    assert done.record.pid == mac.record()["pid"]


def test_rights_are_asked_for_before_anything_is_done(mac: Mac) -> None:
    with pytest.raises(ServiceFailed, match="sudo"):
        mac.omlxd("install", "--system", "--user", "nobody")
    mac.uid = 0
    with pytest.raises(ServiceFailed, match="without sudo"):
        mac.omlxd("install")
    assert not mac.home.exists()


def test_homebrew_s_own_service_is_not_fought(mac: Mac) -> None:
    other = mac.user_home / "homebrew.mxcl.omlxd.plist"
    other.write_bytes(
        plistlib.dumps({"Label": "homebrew.mxcl.omlxd", "ProgramArguments": ["/bin/true"]})
    )
    assert mac.launchctl("bootstrap", "gui/501", str(other)) == 0
    with pytest.raises(ServiceFailed, match="brew services"):
        mac.omlxd("install")


def test_the_stand_in_has_the_codes_of_the_real_one(mac: Mac, until: Until) -> None:
    """3, 5, 17, 37, 64, 112, 113, 119, 125, each where the page has it."""
    mac.omlxd("install")
    mac.omlxd("stop")
    path = str(mac.plist)
    assert mac.launchctl("bootout", GUI) == 3
    assert mac.launchctl("bootout", "gui/501", path) == 5
    assert mac.launchctl("bootout", "--wait", GUI) == 64
    assert mac.launchctl("kickstart", GUI) == 113
    assert mac.launchctl("print", GUI) == 113
    assert mac.launchctl("list", LABEL) == 113
    assert mac.launchctl("bootstrap", "gui/777", path) == 112
    mac.scenario(domains={"gui/501": 125})
    assert mac.launchctl("bootstrap", "gui/501", path) == 125
    mac.scenario(loaded_code=17, draining=60.0)
    assert mac.launchctl("bootstrap", "gui/501", path) == 0
    assert mac.launchctl("bootstrap", "gui/501", path) == 17
    assert mac.launchctl("bootout", GUI) == 0
    assert mac.launchctl("bootout", GUI) == 37
    assert mac.launchctl("bootstrap", "gui/501", path) == 37
    mac.scenario(loaded_code=17, draining=0.0)
    until(lambda: mac.launchctl("print", GUI) == 113)
    mac.launchctl("disable", GUI)
    assert mac.launchctl("bootstrap", "gui/501", path) == 119
    mac.launchctl("enable", GUI)
    mac.plist.chmod(0o666)
    assert mac.launchctl("bootstrap", "gui/501", path) == 5
