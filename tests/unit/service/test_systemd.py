"""The systemd user unit and its verbs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from omlxd.errors import ServiceFailed
from omlxd.service.job import JobSpec
from omlxd.service.systemd import Systemctl, SystemdUnit, is_usable, render_unit
from tests.unit.service.fakes import FakeRun

JOB = JobSpec(
    interpreter="/home/ann/.local/share/uv/tools/omlxd/bin/python",
    config_file=Path("/home/ann/.config/omlxd/config.toml"),
    state=Path("/home/ann/.local/share/omlxd/state"),
    logs=Path("/home/ann/.local/state/omlxd/log"),
)


def test_the_unit_restarts_failures_and_limits_loops() -> None:
    lines = render_unit(JOB).decode().splitlines()
    assert (
        'ExecStart="/home/ann/.local/share/uv/tools/omlxd/bin/python" "-m" "omlxd" "serve" '
        '"--supervised" "--config" "/home/ann/.config/omlxd/config.toml"'
    ) in lines
    for line in ("Restart=on-failure", "TimeoutStopSec=30", "UMask=0077", "StartLimitBurst=6"):
        assert line in lines


def test_native_crashes_go_where_the_logs_command_looks() -> None:
    unit = render_unit(replace(JOB, logs=Path("/srv/100% logs"))).decode()
    assert "\nStandardError=append:/srv/100%% logs/launchd-stderr.log\n" in unit


def test_odd_characters_are_quoted_as_systemd_reads_them() -> None:
    text = render_unit(replace(JOB, home=Path('/srv/50% "off" $HOME\\x'))).decode()
    assert '"--home" "/srv/50%% \\"off\\" $$HOME\\\\x"' in text


class FakeSystemctl:
    """Answers ``show`` with a state, and everything else with a code."""

    def __init__(self, state: str = "inactive", **codes: int) -> None:
        self.state = state
        self.codes = codes
        self.verbs: list[str] = []

    def __call__(self, command: Sequence[str], limit: float) -> tuple[int | None, str]:
        assert command[1] == "--user"
        verb = command[3]
        self.verbs.append(verb)
        if verb == "show":
            pid = 4711 if self.state == "active" else 0
            return (
                0,
                f"ActiveState={self.state}\nMainPID={pid}\nExecMainCode=1\nExecMainStatus=75\n",
            )
        return self.codes.get(verb, 0), f"{verb}: no"


def unit(run: FakeSystemctl, folder: Path) -> SystemdUnit:
    return SystemdUnit(Systemctl("systemctl", run), folder)


def test_load_reads_enables_and_restarts(tmp_path: Path) -> None:
    run = FakeSystemctl()
    unit(run, tmp_path).load()
    assert run.verbs == ["daemon-reload", "enable", "reset-failed", "restart"]


def test_the_view_has_pid_and_last_exit(tmp_path: Path) -> None:
    view = unit(FakeSystemctl("active"), tmp_path).view()
    assert (view.loaded, view.pid, view.last_exit) == (True, 4711, "exit code 75")
    assert not unit(FakeSystemctl("failed"), tmp_path).view().loaded


def test_remove_stops_disables_and_deletes(tmp_path: Path) -> None:
    run = FakeSystemctl("active")
    (tmp_path / "omlxd.service").write_text("")
    unit(run, tmp_path).remove()
    assert run.verbs == ["show", "stop", "disable", "daemon-reload", "reset-failed"]
    assert not (tmp_path / "omlxd.service").exists()


def test_a_refusal_points_to_the_journal(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match=r"restart omlxd.service` gave 1.*journalctl"):
        unit(FakeSystemctl(restart=1), tmp_path).load()


def test_it_is_used_only_where_systemd_runs_and_answers() -> None:
    assert is_usable(Systemctl("systemctl", FakeRun()), lambda: True)
    assert not is_usable(Systemctl("systemctl", FakeRun()), lambda: False)
    nobody = Systemctl("systemctl", lambda command, limit: (1, "Failed to connect to bus"))
    assert not is_usable(nobody, lambda: True)
