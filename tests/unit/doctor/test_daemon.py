"""The doctor's findings about service, port, socket, reach, daemon and guard."""

import errno
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from omlxd.doctor import daemon
from omlxd.doctor.daemon import (
    check_definition,
    check_guard,
    check_health,
    check_interpreter,
    check_job,
    check_port,
    check_reach,
    check_service,
    check_socket,
    check_stop_limits,
)
from omlxd.doctor.finding import Verdict, failed, ok, warn
from omlxd.errors import ConfigError, PortTaken
from omlxd.instance import Healthy, InstanceRecord, Unhealthy
from omlxd.service.control import ServiceStatus
from omlxd.service.interpreter import Problem
from omlxd.service.job import Account
from omlxd.service.supervisor import JobView

PYTHON = "/opt/omlxd/bin/python"
STATUS = ServiceStatus(
    where="launchd (gui/501)",
    definition=Path("/nowhere/io.github.omlxd.omlxd.plist"),
    installed=True,
    job=JobView(loaded=True, pid=42, last_exit=None),
    record=None,
    killed=None,
    health=None,
    last_exit=None,
    interpreter=PYTHON,
    interpreter_exists=True,
)

RECORD = InstanceRecord("x", 42, 100.0, "1.0", host="127.0.0.1", port=8484)


def test_a_service_that_is_not_installed_is_a_warning_with_what_stands_against_it() -> None:
    problem = Problem("this Python vanishes", final=False)
    found = check_service(replace(STATUS, installed=False), PYTHON, [problem])
    assert [finding.verdict for finding in found] == [Verdict.WARN, Verdict.WARN]
    assert found[0].remedy == "omlxd service install"
    assert found[1].text == "this Python vanishes"


def test_a_stop_that_may_take_longer_than_the_supervisor_waits_is_a_warning() -> None:
    """T73"""
    assert check_stop_limits(20.0, 5.0) == check_stop_limits(25.0, 5.0) == []
    (found,) = check_stop_limits(60.0, 5.0)
    assert found.verdict is Verdict.WARN
    assert "65 s" in found.text
    assert "30 s" in found.text


def test_a_python_that_is_gone_fails_and_another_one_is_a_warning() -> None:
    assert check_interpreter(STATUS, PYTHON).verdict is Verdict.OK
    gone = check_interpreter(replace(STATUS, interpreter_exists=False), PYTHON)
    assert (gone.verdict, gone.remedy) == (Verdict.FAIL, "omlxd service install")
    other = check_interpreter(STATUS, "/other/python")
    assert other.verdict is Verdict.WARN
    assert "/other/python" in other.text
    assert check_interpreter(replace(STATUS, interpreter=None), PYTHON).verdict is Verdict.WARN


def test_a_definition_that_others_may_change_fails(tmp_path: Path) -> None:
    path = tmp_path / "job.plist"
    path.touch()
    path.chmod(0o644)
    assert check_definition(path) == []
    path.chmod(0o664)
    (finding,) = check_definition(path)
    assert (finding.verdict, finding.remedy) == (Verdict.FAIL, f"chmod 644 '{path}'")
    path.unlink()
    assert check_definition(path)[0].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("job", "verdict"),
    [
        (JobView(loaded=True, pid=None, last_exit="exit code 78"), Verdict.FAIL),
        (JobView(loaded=False, pid=None, last_exit=None), Verdict.WARN),
    ],
)
def test_launchd_s_own_view_is_said(job: JobView, verdict: Verdict) -> None:
    finding = check_job(replace(STATUS, job=job))
    assert finding.verdict is verdict
    assert finding.name == "launchd (gui/501)"
    assert job.last_exit is None or job.last_exit in finding.text


def test_the_job_s_own_process_is_well_and_one_without_a_record_is_a_warning() -> None:
    assert check_job(replace(STATUS, record=RECORD)).verdict is Verdict.OK
    finding = check_job(STATUS)
    assert finding.verdict is Verdict.WARN
    assert "(pid 42) without a record" in finding.text


def test_a_daemon_started_by_hand_is_not_taken_for_the_job() -> None:
    job = JobView(loaded=True, pid=None, last_exit="exit code 0")
    finding = check_job(replace(STATUS, job=job, record=RECORD))
    assert finding.verdict is Verdict.WARN
    assert "started by hand (pid 42)" in finding.text
    over_ssh = replace(job, last_exit=None)
    assert check_job(replace(STATUS, job=over_ssh, record=RECORD)).verdict is Verdict.OK


def test_a_service_of_another_home_is_not_said_to_be_ill() -> None:
    finding = check_job(replace(STATUS, elsewhere=Path("/second/state")))
    assert finding.verdict is Verdict.WARN
    assert "another data folder: /second/state" in finding.text


RUNNING = InstanceRecord(
    instance_id="i-1",
    pid=42,
    process_started=1.0,
    started_at=1.0,
    version="1.0",
    host="127.0.0.1",
    port=8484,
)


def port_of(port: int, running: InstanceRecord | None, error: OSError | None = None) -> Verdict:
    return check_port(
        "127.0.0.1",
        port,
        running,
        serviced=True,
        bind=lambda *_: error,
        holder=lambda *_: "nginx (pid 7)",
    ).verdict


def test_a_port_is_free_ours_or_taken_by_somebody_named() -> None:
    assert port_of(8484, None) is Verdict.OK
    assert port_of(0, None) is Verdict.OK
    assert port_of(8484, RUNNING, OSError("in use")) is Verdict.OK
    assert port_of(9999, RUNNING) is Verdict.WARN
    assert port_of(8484, None, OSError(errno.EADDRINUSE, "Address in use")) is Verdict.FAIL
    taken = check_port(
        "127.0.0.1",
        8484,
        None,
        serviced=True,
        bind=lambda *_: OSError(errno.EADDRINUSE, "Address in use"),
        holder=lambda *_: "nginx (pid 7)",
    )
    assert "nginx (pid 7)" in taken.text
    nowhere = OSError(errno.EADDRNOTAVAIL, "No such address here")
    bad = check_port(
        "10.0.0.1", 1, None, serviced=True, bind=lambda *_: nowhere, holder=lambda *_: "nginx"
    )
    assert (bad.verdict, "held by" in bad.text) == (Verdict.FAIL, False)
    assert port_of(8484, None, socket.gaierror(-2, "unknown")) is Verdict.FAIL


@pytest.mark.parametrize(
    ("error", "alone", "beside_ours"),
    [
        (None, Verdict.OK, Verdict.WARN),
        (PortTaken("it is taken"), Verdict.FAIL, Verdict.OK),
        (ConfigError(["server.socket: chmod 700"]), Verdict.FAIL, Verdict.FAIL),
    ],
)
def test_the_unix_socket_is_judged_as_serve_judges_it(
    monkeypatch: pytest.MonkeyPatch,
    error: Exception | None,
    alone: Verdict,
    beside_ours: Verdict,
) -> None:
    asked = []

    def check(name: str, uid: int) -> None:
        asked.append((name, uid))
        if error is not None:
            raise error

    monkeypatch.setattr(daemon, "check_local_socket", check)
    assert check_socket("/d/o.sock", None, serviced=True).verdict is alone
    assert check_socket("/d/o.sock", RUNNING, serviced=True).verdict is beside_ours
    check_socket("~/o.sock", None, Account("ann", 501, 20, Path("/Users/ann")), serviced=True)
    assert asked[-1] == ("/Users/ann/o.sock", 501)


@pytest.mark.parametrize(
    ("host", "any_key", "verdict"),
    [
        ("127.0.0.1", False, Verdict.OK),
        ("::1", False, Verdict.OK),
        ("localhost", False, Verdict.OK),
        ("0.0.0.0", False, Verdict.FAIL),
        ("0.0.0.0", True, Verdict.WARN),
        ("box.example", False, Verdict.FAIL),
    ],
)
def test_a_far_reach_without_a_key_fails(host: str, any_key: bool, verdict: Verdict) -> None:
    assert check_reach(host, any_key=any_key).verdict is verdict


def test_the_daemon_is_absent_healthy_hanging_or_another_one() -> None:
    assert check_health(None, None, serviced=True).verdict is Verdict.WARN
    assert check_health(RUNNING, Healthy("i-1", "1.0"), serviced=True).verdict is Verdict.OK
    assert check_health(RUNNING, Healthy("i-2", "1.0"), serviced=True).verdict is Verdict.FAIL
    assert check_health(RUNNING, Unhealthy("it hangs"), serviced=True).verdict is Verdict.FAIL
    assert check_health(RUNNING, None, serviced=True).verdict is Verdict.FAIL


def test_the_guard_of_the_running_daemon_speaks_for_itself() -> None:
    bound = {"binding": "dynamic", "remedy": "Close other apps."}
    assert check_guard({"enabled": True, "pressure_level": "ok", "ceiling": bound}) == ok(
        "guard", "memory pressure is ok (bound: dynamic)"
    )
    assert check_guard({"enabled": True, "pressure_level": "hard", "ceiling": bound}) == warn(
        "guard", "memory pressure is hard (bound: dynamic)", "Close other apps."
    )
    assert check_guard({"enabled": False, "pressure_level": "ok"}).verdict is Verdict.WARN
    held = {**bound, "enforced": False, "admission_paused": True, "pause_reason": "Why."}
    assert check_guard({"enabled": True, "pressure_level": "ok", "ceiling": held}) == warn(
        "guard",
        "memory pressure is ok (bound: dynamic), and nothing is done about it (monitor mode), "
        "new requests wait",
        "Why.",
    )
    assert check_guard({}).verdict is Verdict.WARN


def test_only_failures_fail() -> None:
    assert not failed([ok("a", ""), warn("b", "")])


@pytest.mark.parametrize("serviced", [True, False])
def test_a_remedy_names_the_service_only_where_it_has_the_daemon(
    monkeypatch: pytest.MonkeyPatch, serviced: bool
) -> None:
    """A daemon with ``--port`` was started by hand, and ``omlxd service`` may not work here."""
    monkeypatch.setattr(daemon, "check_local_socket", lambda name, uid: None)
    for finding in (
        check_port("127.0.0.1", 9999, RUNNING, serviced=serviced, holder=lambda *_: ""),
        check_socket("/d/o.sock", RUNNING, serviced=serviced),
        check_health(RUNNING, None, serviced=serviced),
        check_health(None, None, serviced=serviced),
    ):
        assert finding.remedy is not None
        assert ("omlxd service" in finding.remedy) is serviced
