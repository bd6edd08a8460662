"""What the doctor says of the installed service."""

from dataclasses import replace
from pathlib import Path

import pytest

from omlxd.doctor.finding import Verdict
from omlxd.doctor.job import (
    check_definition,
    check_interpreter,
    check_job,
    check_patience,
    check_service,
)
from omlxd.instance import InstanceRecord
from omlxd.service.control import ServiceStatus
from omlxd.service.interpreter import Objection
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
    objection = Objection("this Python vanishes", final=False)
    found = check_service(replace(STATUS, installed=False), PYTHON, [objection])
    assert [finding.verdict for finding in found] == [Verdict.WARN, Verdict.WARN]
    assert found[0].remedy == "omlxd service install"
    assert found[1].text == "this Python vanishes"


def test_a_stop_that_may_take_longer_than_the_supervisor_waits_is_a_warning() -> None:
    """T73"""
    assert check_patience(20.0, 5.0) == check_patience(25.0, 5.0) == []
    (found,) = check_patience(60.0, 5.0)
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
