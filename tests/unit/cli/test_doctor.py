"""``omlxd doctor`` when it cannot find its paths."""

import json
import plistlib
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from omlxd.cli import doctor
from omlxd.cli.main import run
from omlxd.cli.service_context import context
from omlxd.doctor.finding import Verdict
from omlxd.service import machine
from omlxd.service.definition import system_definition, user_definition
from omlxd.service.launchctl import Launchctl
from omlxd.service.machine import Machine
from omlxd.service.systemd import Systemctl
from tests.unit.service.fakes import Time


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_where_only_the_whole_mac_has_a_daemon_it_is_named_and_nothing_else_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as for status, key and models: nobody uses the usual places."""
    here = Machine(
        platform="darwin",
        uid=501,
        user_home=tmp_path / "ann",
        launchctl=Launchctl("/none"),
        systemctl=Systemctl("/none"),
        systemd_booted=lambda: False,
        clock=Time().clock,
        system_folder=tmp_path,
    )
    job = {"ProgramArguments": ["/python", "--home", "/all"], "UserName": "_omlxd"}
    system_definition(tmp_path).write_bytes(plistlib.dumps(job))
    monkeypatch.setattr(machine, "this_machine", lambda: here)
    monkeypatch.setattr(doctor, "_machine", lambda *_: iter(()))
    parser = ArgumentParser()
    doctor.add_arguments(parser.add_subparsers())
    (finding,) = doctor.look(parser.parse_args(["doctor"]), {})
    assert (finding.verdict, finding.remedy) == (Verdict.WARN, "sudo omlxd doctor --system")
    named = parser.parse_args(["doctor", "--home", str(tmp_path / "x")])
    assert not context(named, {}, here).means_system()
    own = user_definition("darwin", here.user_home)
    own.parent.mkdir(parents=True)
    own.write_bytes(plistlib.dumps(job))
    assert not context(parser.parse_args(["doctor"]), {}, here).means_system()


def test_a_home_of_nobody_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMLXD_HOME", "~no-such-user/x")
    assert run(["doctor", "--json"]) == 1
    said = capsys.readouterr()
    answer = json.loads(said.out)
    (finding,) = answer["findings"]
    assert (answer["ok"], finding["name"], finding["verdict"]) == (False, "config", "fail")
    assert "~no-such-user/x" in finding["text"]
    assert said.err == ""
