"""Reading an installed definition back."""

import plistlib
from dataclasses import replace
from pathlib import Path

import pytest

from omlxd.service import plist, systemd
from omlxd.service.definition import Written, read_back
from omlxd.service.job import Account, JobSpec
from omlxd.service.names import LABEL

HOME = Path('/data/omlxd home & 100% of $it, "quoted" \\ and\u2028more')
JOB = JobSpec(
    interpreter="/opt/env/bin/python",
    config_file=HOME / "my.toml",
    state=HOME / "state",
    logs=HOME / "logs",
    home=HOME,
    environment={"HF_HOME": "/models/100% $x"},
)


def rendered(job: JobSpec, kind: str) -> bytes:
    return systemd.render(job) if kind == "unit" else plist.render(job, LABEL, plist.template())


@pytest.mark.parametrize("kind", ["plist", "unit"])
def test_what_was_rendered_is_read_back(kind: str) -> None:
    written = read_back(rendered(JOB, kind))
    assert written is not None
    assert (written.interpreter, written.home) == (JOB.interpreter, HOME)
    assert (written.config_file, written.state) == (JOB.config_file, JOB.state)
    assert (written.logs, written.user) == (JOB.logs, None)
    assert written.environment["HF_HOME"] == "/models/100% $x"


@pytest.mark.parametrize("kind", ["plist", "unit"])
def test_without_a_home_there_is_none(kind: str) -> None:
    written = read_back(rendered(replace(JOB, home=None), kind))
    assert written is not None
    assert (written.home, written.config_file) == (None, JOB.config_file)


def test_a_system_daemon_names_its_account() -> None:
    account = Account("ann", 501, 20, Path("/Users/ann"))
    written = read_back(rendered(replace(JOB, account=account), "plist"))
    assert written is not None
    assert written.user == "ann"
    assert written.environment["HOME"] == "/Users/ann"


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"<plist>",
        b"<plist><date>x</date></plist>",
        b"<plist><key>x</key></plist>",
        b'<?xml version="1.0" encoding="foo"?><plist/>',
        b"not a list",
        b"\xff\xfe",
        b"ExecStart=\n",
        b'ExecStart="open',
        b"ExecStart=a\nEnvironment=\n",
        plistlib.dumps({"ProgramArguments": []}),
        plistlib.dumps({"ProgramArguments": [1]}),
        plistlib.dumps({"ProgramArguments": "python"}),
        plistlib.dumps(["ProgramArguments"]),
    ],
)
def test_a_damaged_one_says_nothing(damaged: bytes) -> None:
    assert read_back(damaged) is None


def test_what_is_odd_in_one_is_not_said() -> None:
    odd = {"ProgramArguments": ["/python", "--home"], "UserName": 1, "WorkingDirectory": []}
    odd |= {"StandardErrorPath": 1, "EnvironmentVariables": {"XDG_DATA_HOME": 1}}
    assert read_back(plistlib.dumps(odd)) == Written("/python", None, None, None, None, None, {})
