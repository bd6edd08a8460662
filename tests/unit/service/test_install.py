"""The steps of an installation, and the rollback when a step fails."""

import os
import plistlib
from dataclasses import replace
from pathlib import Path

import pytest

from omlxd.errors import ConfigError, ServiceFailed
from omlxd.instance import Health, Healthy
from omlxd.service import control, exits
from omlxd.service.definition import plist_template, render_plist
from omlxd.service.install import InstallAction, Installed, InstallRequest, choose_action, install
from omlxd.service.job import JobSpec
from omlxd.service.uninstall import uninstall
from omlxd.service.watch import Watch
from omlxd.store import read_json, write_json
from tests.unit.service.fakes import FakeSupervisor, Time

CONFIG_IS_WRONG = b"a job whose configuration is wrong"


class World:
    """A state folder. This process plays the job: each start is a new instance."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.time = Time()
        self.starts = 0
        self.version = "1.0"
        self.supervisor = FakeSupervisor(folder, self.start, pid=os.getpid())
        self.job = JobSpec("/python", folder / "config.toml", self.state, folder / "logs")

    def start(self, definition: bytes) -> None:
        if definition == CONFIG_IS_WRONG:
            who = exits.ExitingProcess(1, None, True)
            exits.record_exit(self.state, ConfigError(["port: wrong"]), who, now=self.starts)
            return
        self.starts += 1
        write_json(
            self.state / "instance.json",
            {
                "instance_id": f"instance {self.starts}",
                "pid": os.getpid(),
                "started_at": float(self.starts),
                "version": self.version,
                "host": "127.0.0.1",
                "port": 8484,
            },
        )

    def answer(self, url: str) -> Health:
        record = read_json(self.state / "instance.json") or {}
        return Healthy(record["instance_id"], record["version"])

    def install(self, definition: bytes = b"job 1") -> Installed:
        request = InstallRequest(self.job, definition, "1.0")
        return install(self.supervisor, request, self.watch, self.time.clock)

    @property
    def watch(self) -> Watch:
        return Watch(self.state, self.answer, self.time.clock)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    ("loaded", "same", "running", "chosen"),
    [
        (False, False, None, InstallAction.LOAD),
        (False, True, None, InstallAction.LOAD),
        (True, False, Healthy("x", "1.0"), InstallAction.LOAD),
        (True, True, None, InstallAction.RESTART),
        (True, True, Healthy("x", "0.9"), InstallAction.RESTART),
        (True, True, Healthy("x", "1.0"), InstallAction.KEEP),
    ],
)
def test_the_course(
    loaded: bool, same: bool, running: Healthy | None, chosen: InstallAction
) -> None:
    assert choose_action(loaded=loaded, same=same, version="1.0", running=running) is chosen


def test_a_first_installation_loads_and_remembers(world: World) -> None:
    done = world.install()
    assert done.action is InstallAction.LOAD
    assert done.record.instance_id == "instance 1"
    assert world.supervisor.loaded == b"job 1"
    assert read_json(world.state / "service.json") == {
        "domain": "gui/501",
        "definition": str(world.supervisor.definition),
        "interpreter": "/python",
        "version": "1.0",
    }


def test_the_second_does_nothing(world: World) -> None:
    world.install()
    world.supervisor.done.clear()
    assert world.install().action is InstallAction.KEEP
    assert world.supervisor.done == []


def test_a_configuration_of_the_user_is_never_written_over(world: World) -> None:
    """T67."""
    world.job.config_file.write_text("[server]\nport = 9000\n")
    world.install()
    assert world.job.config_file.read_text() == "[server]\nport = 9000\n"


def test_a_refused_first_installation_leaves_no_definition(world: World) -> None:
    world.supervisor.refuses.add(b"job 1")
    with pytest.raises(ServiceFailed, match=r"(?s)launchd refused.*Nothing was installed"):
        world.install()
    assert not world.supervisor.definition.exists()
    assert not (world.state / "service.json").exists()


def test_a_refused_update_brings_the_previous_job_back(world: World) -> None:
    world.install()
    world.supervisor.refuses.add(b"job 2")
    with pytest.raises(ServiceFailed, match="previous service was restored and runs"):
        world.install(b"job 2")
    assert world.supervisor.definition.read_bytes() == b"job 1"
    assert world.supervisor.loaded == b"job 1"


def test_an_update_that_never_gets_healthy_brings_the_previous_job_back(world: World) -> None:
    world.install()
    with pytest.raises(ServiceFailed, match=r"(?s)port: wrong.*restored and runs"):
        world.install(CONFIG_IS_WRONG)
    assert world.supervisor.loaded == b"job 1"


def test_a_stopped_service_stays_stopped_after_a_failed_update(world: World) -> None:
    world.install()
    world.supervisor.unload()
    with pytest.raises(ServiceFailed, match="it was not running"):
        world.install(CONFIG_IS_WRONG)
    assert world.supervisor.loaded is None
    assert world.supervisor.definition.read_bytes() == b"job 1"


def test_a_failed_move_to_another_home_watches_the_previous_one(world: World) -> None:
    """The restored job runs in the data folder that its definition names."""
    first = render_plist(world.job, "label", plist_template())
    world.install(first)
    old = world.state
    world.job = replace(world.job, state=old.with_name("moved"))
    world.supervisor.refuses.add(b"job of another home")
    request = InstallRequest(world.job, b"job of another home", "1.0")
    watch = Watch(world.job.state, world.answer, world.time.clock)
    with pytest.raises(ServiceFailed, match="previous service was restored and runs"):
        install(world.supervisor, request, watch, world.time.clock)
    assert world.supervisor.loaded == first


def test_a_job_in_the_other_domain_is_loaded_there_again_after_a_failure(world: World) -> None:
    """Both domains use the same definition file."""
    other = replace(world.supervisor, loaded=b"job 1", domain="user/501")
    world.supervisor.definition.write_bytes(b"job 1")
    world.supervisor.refuses.add(b"job 2")
    request = InstallRequest(world.job, b"job 2", "1.0", others=(other,))
    with pytest.raises(ServiceFailed, match="previous service was restored and runs"):
        install(world.supervisor, request, world.watch, world.time.clock)
    assert world.supervisor.loaded is None
    assert other.loaded == b"job 1"
    world.supervisor.refuses.clear()
    install(world.supervisor, request, world.watch, world.time.clock)
    assert (world.supervisor.loaded, other.loaded) == (b"job 2", None)


def test_no_command_but_install_makes_the_data_folder(world: World) -> None:
    """If root made the folder, a system daemon could not enter it."""
    with pytest.raises(ServiceFailed, match="not installed"):
        control.start(world.supervisor, world.watch, world.time.clock)
    control.stop(world.supervisor, world.watch, world.time.clock, disable=False)
    uninstall([world.supervisor], world.state, world.time.clock)
    assert not world.state.exists()


def test_no_command_but_install_touches_a_folder_that_is_not_the_service_s(world: World) -> None:
    """Nor the service: it is another home's."""
    job = {"ProgramArguments": ["/python"], "WorkingDirectory": "/home of another/state"}
    world.supervisor.definition.write_bytes(plistlib.dumps(job))
    world.supervisor.loaded = b"job 1"
    world.state.mkdir()
    (world.state / "service.json").write_text("a stranger's")
    pace = world.time.clock
    for command in (
        lambda: control.start(world.supervisor, world.watch, pace),
        lambda: control.restart(world.supervisor, world.watch, pace),
        lambda: control.stop(world.supervisor, world.watch, pace, disable=True),
        lambda: uninstall([world.supervisor], world.state, pace),
    ):
        with pytest.raises(ServiceFailed, match="another data folder, /home of another/state"):
            command()
    world.supervisor.definition.unlink()
    world.supervisor.loaded = None
    uninstall([world.supervisor], world.state, pace)
    assert world.supervisor.done == []
    assert [path.name for path in world.state.iterdir()] == ["service.json"]


def test_a_roll_back_that_fails_as_well_says_both(world: World) -> None:
    world.install()
    world.supervisor.refuses |= {b"job 1", b"job 2"}
    with pytest.raises(ServiceFailed, match=r"(?s)refused.*Restoring .* failed as well"):
        world.install(b"job 2")


def test_an_interruption_rolls_back_and_goes_on(world: World) -> None:
    def interrupted(definition: bytes) -> None:
        raise KeyboardInterrupt

    world.supervisor.on_start = interrupted
    with pytest.raises(KeyboardInterrupt):
        world.install()
    assert not world.supervisor.definition.exists()


def test_an_older_version_that_runs_is_restarted(world: World) -> None:
    world.version = "0.9"
    world.install()
    world.version = "1.0"
    world.time.sleep(0)
    world.supervisor.pid = None
    # This process plays the instance, so it does not end. The forced stop follows.
    assert world.install().action is InstallAction.RESTART
    assert world.supervisor.done[-2:] == ["stop_process", "load"]


def test_a_restart_without_a_record_waits_for_the_process_that_runs(world: World) -> None:
    """A daemon that could not write its record on a full disk, and that drains on SIGTERM."""
    world.install()
    (world.state / "instance.json").unlink()

    def drained() -> None:
        if world.time.now > 20.0:
            world.supervisor.pid = None

    world.supervisor.pid, world.time.then = 4711, drained
    done = control.restart(world.supervisor, world.watch, world.time.clock)
    assert world.supervisor.done[-2:] == ["stop_process", "start"]
    assert world.time.now > 20.0
    assert done.instance_id == "instance 2"


def test_a_process_without_a_record_that_never_ends_is_ended_by_force(world: World) -> None:
    world.install()
    (world.state / "instance.json").unlink()
    world.supervisor.pid = 4711
    control.restart(world.supervisor, world.watch, world.time.clock)
    assert world.supervisor.done[-2:] == ["stop_process", "load"]


def test_a_daemon_run_by_hand_is_not_stopped(world: World) -> None:
    world.install()
    world.supervisor.pid = 1
    world.version = "0.9"
    world.start(b"")
    with pytest.raises(ServiceFailed, match=f"not as the service: pid {os.getpid()}"):
        world.install()


def test_a_folder_that_cannot_be_made_is_named(world: World, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in the way")
    with pytest.raises(ServiceFailed, match=r"cannot prepare .*logs"):
        world.install()


def test_a_restart_can_be_asked_for_only_where_it_makes_sense() -> None:
    healthy = Healthy("x", "1.0")
    same = choose_action(loaded=True, same=True, version="1.0", running=healthy, restart=True)
    new = choose_action(loaded=False, same=False, version="1.0", running=None, restart=True)
    assert (same, new) == (InstallAction.RESTART, InstallAction.LOAD)
