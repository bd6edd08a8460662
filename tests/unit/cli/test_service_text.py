"""The state of the service as text."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from omlxd.cli.service_text import as_json, as_text, is_healthy, not_carried
from omlxd.instance import Healthy, InstanceRecord
from omlxd.service.control import ServiceStatus
from omlxd.service.exits import Ending, LastExit
from omlxd.service.supervisor import JobView

PYTHON = "/opt/omlxd/bin/python"
RECORD = InstanceRecord("x", 42, 100.0, "1.0", host="127.0.0.1", port=8484)
STATUS = ServiceStatus(
    where="launchd (gui/501)",
    definition=Path("/nowhere/io.github.omlxd.omlxd.plist"),
    installed=True,
    job=JobView(loaded=True, pid=42, last_exit="exit code 0"),
    record=RECORD,
    killed=None,
    health=Healthy("x", "1.0"),
    last_exit=None,
    interpreter=PYTHON,
    interpreter_exists=True,
)


def said(status: ServiceStatus) -> str:
    return "\n".join(as_text(status, PYTHON))


def test_a_healthy_service_is_said_first() -> None:
    assert is_healthy(STATUS)
    assert said(STATUS).startswith("omlxd runs and is healthy: http://127.0.0.1:8484\n")
    assert "remedy" not in said(STATUS)


def test_programs_are_told_too_where_else_the_service_has_its_data() -> None:
    elsewhere = as_json(replace(STATUS, elsewhere=Path("/data/x")))
    assert (elsewhere["elsewhere"], elsewhere["healthy"]) == ("/data/x", False)
    assert as_json(STATUS)["elsewhere"] is None
    assert json.loads(json.dumps(elsewhere)) == elsewhere


def test_a_process_without_a_record_is_not_said_to_be_down() -> None:
    text = said(replace(STATUS, record=None, health=None))
    assert "omlxd runs (pid 42) without a record (is the disk full?)" in text
    assert "make room on the disk, then: omlxd service restart" in text
    assert "service start" not in text


@pytest.mark.parametrize(
    "job",
    [
        JobView(loaded=True, pid=None, last_exit="exit code 0"),
        JobView(loaded=True, pid=43, last_exit=None),
        JobView(loaded=False, pid=None, last_exit=None),
    ],
)
def test_a_daemon_started_by_hand_is_not_the_healthy_service(job: JobView) -> None:
    status = replace(STATUS, job=job)
    assert not is_healthy(status)
    assert "not as the service (started by hand, pid 42)" in said(status)
    assert "remedy      kill 42, then: omlxd service start" in said(status)


def test_what_the_supervisor_does_not_say_speaks_against_nothing() -> None:
    """Over SSH ``launchctl list`` sees another session."""
    assert is_healthy(replace(STATUS, job=JobView(loaded=True, pid=None, last_exit=None)))


def test_after_a_mistake_in_the_configuration_the_remedy_is_to_mend_it() -> None:
    last = LastExit(9.0, 42, None, Ending.CONFIG, 0, "config_error", "port: wrong", True)
    job = JobView(loaded=True, pid=None, last_exit="exit code 0")
    text = said(replace(STATUS, job=job, record=None, health=None, last_exit=last))
    assert "port: wrong" in text
    assert "remedy      mend the configuration, then: omlxd service start" in text


def test_there_is_one_remedy_and_a_python_that_is_gone_comes_first() -> None:
    job = JobView(loaded=False, pid=None, last_exit=None)
    text = said(replace(STATUS, job=job, record=None, health=None, interpreter_exists=False))
    assert text.count("remedy") == 1
    assert "its Python is gone" in text


def test_a_service_of_another_home_is_told_apart() -> None:
    status = replace(STATUS, elsewhere=Path("/second/state"))
    assert not is_healthy(status)
    assert said(status).startswith("omlxd is installed with another data folder: /second/state\n")
    assert "remedy      leave out --home" in said(status)


def test_only_what_the_service_would_have_used_is_said_to_be_missing() -> None:
    tools = {f"OMLXD_{name}": "x" for name in ("ENV", "HOME", "KEY", "MLX", "PYTHON", "URL")}
    assert not_carried(tools | {"HF_ENDPOINT": "https://mirror.example"}) == []
    options, secrets = not_carried(
        {"OMLXD_SERVER_PORT": "1", "OMLXD_LOG_LEVEL": "info", "HF_ENDPOINT": "https://h/?token=t"}
    )
    assert "of this shell: OMLXD_LOG_LEVEL, OMLXD_SERVER_PORT. Put them" in options
    assert secrets.endswith("a token: HF_ENDPOINT.")
