"""The definition that launchd runs, and reading an installed definition."""

import plistlib
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from omlxd.errors import ServiceFailed
from omlxd.library.scanner import VARIABLES
from omlxd.service import systemd
from omlxd.service.definition import Definition, parse_definition, plist_template, render_plist
from omlxd.service.job import (
    EXIT_TIMEOUT,
    LABEL,
    Account,
    JobSpec,
    carried_environment,
    with_secrets,
)

JOB = JobSpec(
    interpreter="/Users/ann/.local/share/uv/tools/omlxd/bin/python",
    config_file=Path("/Users/ann/Library/Application Support/omlxd/config.toml"),
    state=Path("/Users/ann/Library/Application Support/omlxd/state"),
    logs=Path("/Users/ann/Library/Logs/omlxd"),
)
DAEMON = replace(
    JOB,
    home=Path("/Library/Application Support/omlxd"),
    account=Account("_llm", 300, 300, Path("/var/llm")),
)

TYPES = {
    "Label": str,
    "ProgramArguments": list,
    "KeepAlive": dict,
    "RunAtLoad": bool,
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "ProcessType": str,
    "Umask": str,
    "WorkingDirectory": str,
    "EnvironmentVariables": dict,
    "StandardOutPath": str,
    "StandardErrorPath": str,
    "LimitLoadToSessionType": list,
    "SoftResourceLimits": dict,
    "UserName": str,
}


def keys_of(job: JobSpec) -> dict[str, object]:
    keys: dict[str, object] = plistlib.loads(render_plist(job, LABEL, plist_template()))
    return keys


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [s for entry in value.values() for s in strings(entry)]
    if isinstance(value, list):
        return [s for entry in value for s in strings(entry)]
    return [value] if isinstance(value, str) else []


def test_the_agent_has_the_values_that_launchd_needs() -> None:
    keys = keys_of(JOB)
    assert keys == {
        "Label": "io.github.omlxd.omlxd",
        "ProgramArguments": [
            JOB.interpreter,
            "-m",
            "omlxd",
            "serve",
            "--supervised",
            "--config",
            str(JOB.config_file),
        ],
        "KeepAlive": {"SuccessfulExit": False},
        "RunAtLoad": True,
        "ThrottleInterval": 10,
        "ExitTimeOut": 30,
        "ProcessType": "Interactive",
        "LimitLoadToSessionType": ["Aqua", "Background"],
        "Umask": "077",
        "WorkingDirectory": str(JOB.state),
        "EnvironmentVariables": {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
        },
        "StandardOutPath": "/Users/ann/Library/Logs/omlxd/launchd-stdout.log",
        "StandardErrorPath": "/Users/ann/Library/Logs/omlxd/launchd-stderr.log",
        "SoftResourceLimits": {"NumberOfFiles": 4096},
    }
    assert keys["ExitTimeOut"] == EXIT_TIMEOUT


def test_the_daemon_runs_as_its_account_and_never_touches_kernel_limits() -> None:
    keys = keys_of(DAEMON)
    assert keys["UserName"] == "_llm"
    assert keys["EnvironmentVariables"]["HOME"] == "/var/llm"  # type: ignore[index]
    assert "SoftResourceLimits" not in keys
    assert "LimitLoadToSessionType" not in keys
    assert keys["ProgramArguments"][-2:] == ["--home", str(DAEMON.home)]  # type: ignore[index]


@pytest.mark.parametrize("job", [JOB, DAEMON])
def test_the_types_are_those_launchd_wants(job: JobSpec) -> None:
    keys = keys_of(job)
    assert {name for name, value in keys.items() if type(value) is not TYPES[name]} == set()


@pytest.mark.parametrize("job", [JOB, DAEMON])
def test_no_placeholder_tilde_or_variable_is_left(job: JobSpec) -> None:
    for text in strings(keys_of(job)):
        assert not re.search(r"^@\w+@$|~|\$", text), text


def test_paths_with_odd_characters_survive() -> None:
    odd = Path('/Users/ann/R&D <new> "x" @LABEL@ 모델')
    keys = keys_of(replace(JOB, home=odd, state=odd))
    assert keys["WorkingDirectory"] == str(odd)
    assert keys["ProgramArguments"][-1] == str(odd)  # type: ignore[index]


def test_the_same_job_gives_the_same_bytes() -> None:
    assert render_plist(JOB, LABEL, plist_template()) == render_plist(JOB, LABEL, plist_template())


def test_the_template_explains_itself_and_the_result_does_not() -> None:
    assert plist_template().count(b"<!--") > 15
    assert b"<!--" not in render_plist(JOB, LABEL, plist_template())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"interpreter": "python3"}, "the interpreter must be an absolute path"),
        ({"config_file": Path("omlxd.toml")}, "the configuration file must be an absolute"),
        ({"logs": Path("/Volumes/Big/logs")}, "the log folder is on an external volume"),
        ({"state": Path("/Volumes/Home/ann/state")}, "the state folder is on an external volume"),
        ({"state": Path("/tmp/a\nb")}, "the state folder has a character"),
        ({"home": Path("/not utf-8 \udcff")}, "the home folder has a character"),
    ],
)
def test_a_path_that_launchd_cannot_use_is_named(change: dict[str, object], says: str) -> None:
    """T66: a home on an external disk."""
    with pytest.raises(ServiceFailed, match=says):
        render_plist(replace(JOB, **change), LABEL, plist_template())  # type: ignore[arg-type]


def test_a_link_to_an_external_volume_is_no_way_around(tmp_path: Path) -> None:
    (tmp_path / "home").symlink_to("/Volumes/Big/omlxd")
    with pytest.raises(ServiceFailed, match="the state folder is on an external volume"):
        render_plist(replace(JOB, state=tmp_path / "home" / "state"), LABEL, plist_template())
    with pytest.raises(ServiceFailed, match="the state folder has a character"):
        render_plist(replace(JOB, state=Path("/tmp/a\0b")), LABEL, plist_template())


def test_only_harmless_settings_of_the_shell_are_carried() -> None:
    environ = {
        "HF_HOME": "/Users/ann/hf",
        "HF_TOKEN": "hf_secret",
        "HF_ENDPOINT": "https://ann:secret@mirror.example",
        "XDG_DATA_HOME": "",
        "OMLXD_SERVER_PORT": "9000",
        "PATH": "/opt/homebrew/bin",
    }
    carried = carried_environment(environ)
    assert carried == {"HF_HOME": "/Users/ann/hf"}
    assert b"secret" not in render_plist(replace(JOB, environment=carried), LABEL, plist_template())
    assert with_secrets(environ) == ("HF_ENDPOINT",)


@pytest.mark.parametrize(
    ("endpoint", "carried"),
    [
        ("https://mirror.example/hf", True),
        ("https://ann:secret@mirror.example", False),
        ("https://mirror.example/hf?token=secret", False),
        ("https://mirror.example/hf#secret", False),
    ],
)
def test_an_address_with_a_secret_is_not_carried(endpoint: str, carried: bool) -> None:
    environ = {"HF_ENDPOINT": endpoint}
    assert ("HF_ENDPOINT" in carried_environment(environ)) is carried
    assert bool(with_secrets(environ)) is not carried


def test_carried_folders_are_absolute_as_the_shell_means_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/Users/ann")
    monkeypatch.chdir(tmp_path)
    environ = {"HF_HOME": "~/hf", "XDG_DATA_HOME": "data", "HF_HUB_OFFLINE": "1"}
    assert carried_environment(environ) == {
        "HF_HOME": "/Users/ann/hf",
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "HF_HUB_OFFLINE": "1",
    }


def test_the_service_finds_the_models_that_the_shell_finds() -> None:
    environ = dict.fromkeys(VARIABLES, "/somewhere")
    assert carried_environment(environ) == environ


@pytest.mark.parametrize("kind", ["plist", "unit"])
@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"HF_HOME": "~no_such_user/hf"}, "HF_HOME must be an absolute path"),
        ({"HF_HOME": "/a\nExecStart=/bin/sh"}, "HF_HOME has a character"),
        ({"HF_HUB_OFFLINE": "1\x01"}, "HF_HUB_OFFLINE has a character"),
        ({"XDG_DATA_HOME": "/not utf-8 \udcff"}, "XDG_DATA_HOME has a character"),
    ],
)
def test_a_setting_that_no_definition_can_hold_is_named(
    environ: dict[str, str], says: str, kind: str
) -> None:
    job = replace(JOB, environment=carried_environment(environ))
    with pytest.raises(ServiceFailed, match=says):
        systemd.render_unit(job) if kind == "unit" else render_plist(job, LABEL, plist_template())


def test_openblas_is_carried_on_linux_alone_and_nothing_else_that_is_preloaded() -> None:
    blas = "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0"
    environ = {"LD_PRELOAD": f"/opt/spy.so {blas}:libopenblas.so:/opt/libopenblas.so/other.so"}
    assert carried_environment(environ, linux=True) == {"LD_PRELOAD": blas}
    assert carried_environment(environ) == {}
    assert carried_environment({"LD_PRELOAD": "/opt/spy.so"}, linux=True) == {}


def test_the_wheel_carries_the_template_where_an_installation_looks_for_it() -> None:
    root = Path(__file__).parents[3]
    build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["force-include"] == {
        "launchd/job.plist": "omlxd/service/launchd/job.plist"
    }
    assert plist_template() == (root / "launchd" / "job.plist").read_bytes()


HOME = Path('/data/omlxd home & 100% of $it, "quoted" \\ and\u2028more')
ODD_JOB = JobSpec(
    interpreter="/opt/env/bin/python",
    config_file=HOME / "my.toml",
    state=HOME / "state",
    logs=HOME / "logs",
    home=HOME,
    environment={"HF_HOME": "/models/100% $x"},
)


def rendered(job: JobSpec, kind: str) -> bytes:
    return (
        systemd.render_unit(job) if kind == "unit" else render_plist(job, LABEL, plist_template())
    )


@pytest.mark.parametrize("kind", ["plist", "unit"])
def test_what_was_rendered_is_read_back(kind: str) -> None:
    written = parse_definition(rendered(ODD_JOB, kind))
    assert written is not None
    assert (written.interpreter, written.home) == (ODD_JOB.interpreter, HOME)
    assert (written.config_file, written.state) == (ODD_JOB.config_file, ODD_JOB.state)
    assert (written.logs, written.user) == (ODD_JOB.logs, None)
    assert written.environment["HF_HOME"] == "/models/100% $x"


@pytest.mark.parametrize("kind", ["plist", "unit"])
def test_without_a_home_there_is_none(kind: str) -> None:
    written = parse_definition(rendered(replace(ODD_JOB, home=None), kind))
    assert written is not None
    assert (written.home, written.config_file) == (None, ODD_JOB.config_file)


def test_a_system_daemon_names_its_account() -> None:
    account = Account("ann", 501, 20, Path("/Users/ann"))
    written = parse_definition(rendered(replace(ODD_JOB, account=account), "plist"))
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
    assert parse_definition(damaged) is None


def test_what_is_odd_in_one_is_not_said() -> None:
    odd = {"ProgramArguments": ["/python", "--home"], "UserName": 1, "WorkingDirectory": []}
    odd |= {"StandardErrorPath": 1, "EnvironmentVariables": {"XDG_DATA_HOME": 1}}
    assert parse_definition(plistlib.dumps(odd)) == Definition(
        "/python", None, None, None, None, None, {}
    )
