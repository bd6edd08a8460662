"""The service commands against the real launchctl, with a small daemon as the job.

Everything lives under a label and a folder of its own: an installed omlxd is left alone.
"""

import os
import plistlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from omlxd.errors import ServiceFailed
from omlxd.host.sleep_inhibitor import Child, SleepInhibitor, spawn_quietly
from omlxd.instance import ask_health
from omlxd.service import control, install, uninstall
from omlxd.service.definition import plist_template, render_plist
from omlxd.service.install import InstallAction, InstallRequest
from omlxd.service.job import JobSpec
from omlxd.service.launchctl import Code, Launchctl, LoadState, load_state
from omlxd.service.launchd import LaunchdJob, choose_domain
from omlxd.service.supervisor import Clock
from omlxd.service.watch import Watch

pytestmark = pytest.mark.mac

LABEL = "io.github.omlxd.test"
CLOCK = Clock(time.monotonic, time.sleep)
REPOSITORY = Path(__file__).parents[2]


class Trial:
    """An agent of this user in the real domain, with its plist in the usual folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.launchctl = Launchctl()
        self.domain = choose_domain(os.getuid(), lambda n: load_state(self.launchctl.print(n).code))
        self.target = self.domain.target(LABEL)
        folder = Path.home() / "Library" / "LaunchAgents"
        self.supervisor = LaunchdJob(self.launchctl, self.domain, LABEL, folder, CLOCK)
        self.watch = Watch(home / "state", ask_health, CLOCK, within=30.0)
        python = home / "python"
        home.mkdir(exist_ok=True)
        python.write_text(
            f'#!/bin/sh\nPYTHONPATH="{REPOSITORY}" exec "{sys.executable}" '
            f'"{REPOSITORY}/tests/support/health_job.py" "$@"\n'
        )
        python.chmod(0o755)
        self.job = JobSpec(
            interpreter=str(python),
            config_file=home / "config.toml",
            state=home / "state",
            logs=home / "logs",
            home=home,
        )

    def install(self, job: JobSpec | None = None) -> install.Installed:
        job = job or self.job
        definition = render_plist(job, LABEL, plist_template())
        return install.install(
            self.supervisor, InstallRequest(job, definition, "0.1.0"), self.watch, CLOCK
        )


@pytest.fixture
def trial() -> Iterator[Trial]:
    # Not under /tmp or a protected folder: launchd's job must be able to enter it.
    home = Path.home() / "Library" / "Caches" / f"omlxd-test-{os.getpid()}"
    trial = Trial(home)
    yield trial
    uninstall.uninstall([trial.supervisor], home / "state", CLOCK)
    trial.launchctl.enable(trial.target)
    subprocess.run(["/bin/rm", "-rf", str(home)], check=True)


def test_plutil_accepts_the_plist(tmp_path: Path, trial: Trial) -> None:
    path = tmp_path / "job.plist"
    path.write_bytes(render_plist(trial.job, LABEL, plist_template()))
    assert subprocess.run(["/usr/bin/plutil", "-lint", str(path)], check=False).returncode == 0
    assert plistlib.loads(path.read_bytes())["KeepAlive"] == {"SuccessfulExit": False}


def test_install_twice_restart_stop_start_uninstall(trial: Trial) -> None:
    """T66, T67: the whole life, with the real asynchronous bootout."""
    first = trial.install()
    assert first.action is InstallAction.LOAD
    view = trial.supervisor.view()
    assert (view.loaded, view.pid) == (True, first.record.pid)
    assert trial.install().action is InstallAction.KEEP
    changed = replace(trial.job, environment={"HF_HUB_OFFLINE": "1"})
    second = trial.install(changed)
    assert second.record.instance_id != first.record.instance_id
    third = control.restart(trial.supervisor, trial.watch, CLOCK)
    assert third.instance_id != second.record.instance_id
    assert control.stop(trial.supervisor, trial.watch, CLOCK, disable=False)
    assert trial.launchctl.print(trial.target).code == Code.NOT_FOUND
    assert control.start(trial.supervisor, trial.watch, CLOCK).pid != third.pid
    done = uninstall.uninstall([trial.supervisor], trial.home / "state", CLOCK)
    assert done.removed == (trial.supervisor.definition,)


def test_a_killed_job_is_started_again_and_a_clean_stop_is_not(trial: Trial) -> None:
    record = trial.install().record
    before = trial.watch.baseline()
    os.kill(record.pid, 9)
    again = trial.watch.until_up(before, trial.supervisor)
    assert again.pid != record.pid
    trial.supervisor.stop_process()
    assert trial.watch.until_ended(again, 10.0)
    time.sleep(12)
    view = trial.supervisor.view()
    assert (view.loaded, view.pid) == (True, None)


def test_a_permanent_error_ends_once_and_is_rolled_back(trial: Trial) -> None:
    """T65."""
    trial.job.config_file.write_text("nonsense = 1\n")
    with pytest.raises(ServiceFailed, match="unknown key"):
        trial.install()
    assert trial.launchctl.print(trial.target).code == Code.NOT_FOUND


def test_the_codes_of_this_macos(trial: Trial) -> None:
    assert trial.launchctl.print(trial.target).code == Code.NOT_FOUND
    assert trial.launchctl.bootout(trial.target).code in (Code.NO_PROCESS, Code.NOT_FOUND)
    assert trial.launchctl.kickstart(trial.target).code == Code.NOT_FOUND
    assert trial.launchctl.list(LABEL) is None
    assert load_state(trial.launchctl.print("gui/4294967").code) is LoadState.NO_DOMAIN
    trial.install()
    again = trial.launchctl.bootstrap(trial.domain.name, str(trial.supervisor.definition))
    assert again.code in (Code.IO_ERROR, Code.EXISTS, Code.IN_PROGRESS)


def test_a_disabled_job_is_refused_and_start_enables_it(trial: Trial) -> None:
    trial.install()
    control.stop(trial.supervisor, trial.watch, CLOCK, disable=True)
    refused = trial.launchctl.bootstrap(trial.domain.name, str(trial.supervisor.definition))
    assert refused.code in (Code.IO_ERROR, Code.DISABLED)
    control.start(trial.supervisor, trial.watch, CLOCK)


def test_the_assertion_is_held_while_working_only() -> None:
    """T69."""
    spawned: list[subprocess.Popen[bytes]] = []

    def spawn(command: Sequence[str]) -> Child:
        spawned.append(spawn_quietly(command))
        return spawned[-1]

    def held() -> bool:
        said = subprocess.run(
            ["/usr/bin/pmset", "-g", "assertions"], capture_output=True, text=True, check=True
        ).stdout
        ours = rf"pid {spawned[0].pid}\(caffeinate\):.*PreventUserIdleSystemSleep"
        return re.search(ours, said) is not None

    inhibitor = SleepInhibitor(lambda: True, spawn, os.getpid())
    inhibitor.update()
    limit = time.monotonic() + 20
    while not held() and time.monotonic() < limit:
        time.sleep(0.1)
    assert held()
    inhibitor.close()
    assert not held()
    assert not inhibitor.holding
