"""The places of the service commands, by flags, environment and the installed service."""

import os
import pwd
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from omlxd.cli import service
from omlxd.cli.service_context import Context, context
from omlxd.config.paths import standard_paths
from omlxd.errors import ConfigError
from omlxd.service import machine, systemd
from omlxd.service.definition import plist_template, render_plist
from omlxd.service.job import LABEL, UNIT, Account, JobSpec
from omlxd.service.launchctl import Launchctl
from omlxd.service.machine import Machine
from omlxd.service.systemd import Systemctl
from tests.unit.service.fakes import Time


@pytest.fixture
def here(tmp_path: Path) -> Machine:
    return Machine(
        platform="darwin",
        uid=501,
        user_home=tmp_path / "ann",
        launchctl=Launchctl("/none"),
        systemctl=Systemctl("/none"),
        systemd_booted=lambda: True,
        clock=Time().clock,
        system_folder=tmp_path / "LaunchDaemons",
    )


def asked(here: Machine, *words: str, environ: Mapping[str, str] | None = None) -> Context:
    parser = ArgumentParser()
    service.add_arguments(parser.add_subparsers())
    return context(parser.parse_args(["service", *words]), environ or {}, here)


def install(
    here: Machine,
    home: Path | None,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    found = standard_paths(home, config)
    job = JobSpec(
        "/python", found.config_file, found.state, found.logs, home, dict(environment or {})
    )
    path = here.user_home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    content = render_plist(job, LABEL, plist_template())
    if here.platform != "darwin":
        path = here.user_home / ".config" / "systemd" / "user" / UNIT
        content = systemd.render_unit(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize("platform", ["darwin", "linux"])
@pytest.mark.parametrize(
    "verb", ["install", "uninstall", "start", "stop", "restart", "status", "logs"]
)
def test_every_verb_looks_where_the_service_was_installed(
    here: Machine, platform: str, verb: str
) -> None:
    here = replace(here, platform=platform)
    install(here, Path("/data/x"), Path("/etc/omlxd.toml"))
    found = asked(here, verb)
    assert found.home == Path("/data/x")
    assert found.paths == standard_paths(Path("/data/x"), Path("/etc/omlxd.toml"))
    assert found.job().home == Path("/data/x")
    assert found.purge_paths().config_file is None, "a purge keeps it: it is the user's own"


def test_the_configuration_at_its_usual_place_stays_a_belonging(here: Machine) -> None:
    install(here, Path("/data/x"))
    assert asked(here, "uninstall").purge_paths().config_file == Path("/data/x/config.toml")


def test_what_is_named_wins_over_what_is_installed(here: Machine) -> None:
    install(here, Path("/data/x"), Path("/etc/omlxd.toml"))
    assert asked(here, "status", "--home", "/y").paths == standard_paths(Path("/y"), None)
    assert asked(here, "status", environ={"OMLXD_HOME": "/y"}).paths == standard_paths(
        Path("/y"), None
    )
    named = asked(here, "install", "--config", "/z.toml")
    assert named.paths == standard_paths(Path("/data/x"), Path("/z.toml"))


def test_installed_at_the_usual_places_they_are_used(here: Machine) -> None:
    install(here, None)
    assert asked(here, "status").paths == standard_paths(None, None)


@pytest.mark.parametrize("verb", ["install", "uninstall", "start", "status"])
def test_the_folders_of_the_installing_shell_are_the_service_s(
    here: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    folders = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("CONFIG", "DATA", "CACHE")}
    with monkeypatch.context() as installing:
        for name, folder in folders.items():
            installing.setenv(name, folder)
        there = standard_paths(None, None)
        install(here, None, environment=folders)
    found = asked(here, verb, environ={"HF_HOME": "/hf"})
    assert found.paths == there
    assert found.job().environment == {**folders, "HF_HOME": "/hf"}, "it will look there again"
    assert found.purge_paths().config_file == there.config_file


def test_an_installation_moves_the_service_to_the_folders_of_its_shell(
    here: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(here, None, environment={"XDG_DATA_HOME": "/before"})
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    environ = {"XDG_DATA_HOME": str(tmp_path)}
    found = asked(here, "install", environ=environ)
    assert found.paths.state == tmp_path / "omlxd" / "state"
    assert found.job().environment == environ
    assert asked(here, "status", environ=environ).paths.state != found.paths.state


def test_with_nothing_installed_or_a_damaged_definition_the_usual_places_are(
    here: Machine,
) -> None:
    assert asked(here, "status").paths == standard_paths(None, None)
    install(here, Path("/data/x"))
    next(here.user_home.rglob("*.plist")).write_bytes(b"damaged")
    assert asked(here, "status").paths == standard_paths(None, None)


def test_the_daemon_of_the_whole_mac_has_a_definition_of_its_own(here: Machine) -> None:
    install(here, Path("/data/x"))
    assert asked(here, "status", "--system").home == machine.SYSTEM_HOME
    found = standard_paths(Path("/srv/omlxd"), None)
    account = Account("ann", 501, 20, here.user_home)
    job = JobSpec("/python", found.config_file, found.state, found.logs, Path("/srv/omlxd"))
    here.system_folder.mkdir()
    (here.system_folder / f"{LABEL}.plist").write_bytes(
        render_plist(replace(job, account=account), LABEL, plist_template())
    )
    assert asked(here, "status", "--system").paths == found


def test_the_doctor_looks_with_the_eyes_of_the_system_daemon(here: Machine, tmp_path: Path) -> None:
    """Not with the variables of root, who runs the command."""
    me = pwd.getpwuid(os.getuid())
    data = tmp_path / "data"
    found = asked(here, "status", "--system", "--home", str(data), environ={"HF_HOME": "/root/hf"})
    assert found.runs_as() is None, "nothing is there that belongs to anybody"
    (data / "state").mkdir(parents=True)
    owner = found.runs_as()
    assert owner is not None
    assert owner.uid == me.pw_uid
    environ = found.daemon_environ(owner)
    assert environ == {"XDG_CACHE_HOME": f"{me.pw_dir}/.cache"}
    agent = asked(here, "status", environ={"HF_HOME": "/ann/hf"})
    assert agent.runs_as() is None
    assert agent.daemon_environ(None) == {"HF_HOME": "/ann/hf"}


def test_a_home_of_nobody_is_a_mistake(here: Machine) -> None:
    with pytest.raises(ConfigError, match="no_such_user"):
        asked(here, "status", "--home", "~no_such_user/x")


def test_a_path_that_cannot_be_printed_is_a_mistake(here: Machine) -> None:
    for path in ("/a\nb", "/not utf-8 \udcff"):
        with pytest.raises(ConfigError, match="character that cannot be used"):
            asked(here, "status", "--home", path)


def test_a_data_folder_of_another_account_is_a_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Machine
) -> None:
    def refused(_: Context) -> int:
        raise PermissionError(13, "Permission denied", "/data/x/state/service.lock")

    monkeypatch.setattr(service, "perform", refused)
    monkeypatch.setattr(machine, "this_machine", lambda: here)
    monkeypatch.setattr(service, "_quiet_logs", lambda: None)
    parser = ArgumentParser()
    service.add_arguments(parser.add_subparsers())
    assert service.run(parser.parse_args(["service", "start"])) == 1
    assert capsys.readouterr().err == ("omlxd: /data/x/state/service.lock: Permission denied\n")
