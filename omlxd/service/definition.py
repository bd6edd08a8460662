"""The definition of the job: renders the launchd plist, and reads an installed definition."""

import plistlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

from omlxd.errors import ServiceFailed
from omlxd.service.job import LABEL, UNIT, JobSpec, arguments, check

AGENTS = Path("Library/LaunchAgents")
"""Below the user's home, like ``UNITS``."""
UNITS = Path(".config/systemd/user")
DAEMONS = Path("/Library/LaunchDaemons")
AGENT_ONLY = ("LimitLoadToSessionType", "SoftResourceLimits")
DAEMON_ONLY = ("UserName",)

_UNREADABLE = (
    plistlib.InvalidFileException,
    ExpatError,
    ValueError,
    AttributeError,  # an invalid date
    LookupError,  # an unknown encoding
)


def plist_template() -> bytes:
    """The template with comments, from the wheel or from the clone of an editable installation.

    Raises ServiceFailed when it is in neither.
    """
    # Imported here: the other commands only read definitions.
    from importlib.resources import files

    inside = files("omlxd.service").joinpath("launchd", "job.plist")
    clone = Path(__file__).parents[2] / "launchd" / "job.plist"
    for place in (inside, clone):
        if place.is_file():
            return place.read_bytes()
    raise ServiceFailed("the template launchd/job.plist is missing; install omlxd again")


def render_plist(job: JobSpec, label: str, source: bytes) -> bytes:
    """The property list of ``job``: an agent, or a daemon if the job has an account.

    The same job gives the same bytes. Raises ServiceFailed for a path that launchd cannot use.
    """
    check(job)
    values = {
        "@LABEL@": label,
        "@PYTHON@": job.interpreter,
        "@CONFIG@": str(job.config_file),
        "@STATE@": str(job.state),
        "@STDOUT@": str(job.stdout),
        "@STDERR@": str(job.stderr),
    }
    account = job.account
    if account is not None:
        values |= {"@USER@": account.name, "@USER_HOME@": str(account.home)}
    keys: dict[str, Any] = plistlib.loads(source)
    for name in DAEMON_ONLY if account is None else AGENT_ONLY:
        del keys[name]
    environment = keys["EnvironmentVariables"]
    if account is None:
        del environment["HOME"]
    environment.update(job.environment)
    result = _fill(keys, values)
    result["ProgramArguments"] += arguments(job)[len(result["ProgramArguments"]) :]
    return plistlib.dumps(result, sort_keys=False)


def _fill(value: Any, values: dict[str, str]) -> Any:
    """Fill the placeholders. Only whole strings are replaced, so a value is never a placeholder."""
    if isinstance(value, dict):
        return {key: _fill(entry, values) for key, entry in value.items()}
    if isinstance(value, list):
        return [_fill(entry, values) for entry in value]
    return values.get(value, value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Definition:
    """The content of an installed definition; an attribute is None when the file lacks it.

    Attributes:
        home, config_file: the values of the daemon's ``--home`` and ``--config``.
        logs: the folder of its standard error.
        user: the account of a system daemon.
    """

    interpreter: str
    home: Path | None
    config_file: Path | None
    state: Path | None
    logs: Path | None
    user: str | None
    environment: Mapping[str, str]


def parse_definition(definition: bytes) -> Definition | None:
    """None when ``definition`` is damaged, or is neither a plist nor our unit file."""
    try:
        keys = plistlib.loads(definition)
    except _UNREADABLE:
        keys = _unit(definition)
    match keys:
        case {"ProgramArguments": [str(interpreter), *words]}:
            state, stderr = keys.get("WorkingDirectory"), keys.get("StandardErrorPath")
            user, environment = keys.get("UserName"), keys.get("EnvironmentVariables")
            return Definition(
                interpreter=interpreter,
                home=_option(words, "--home"),
                config_file=_option(words, "--config"),
                state=Path(state) if isinstance(state, str) else None,
                logs=Path(stderr).parent if isinstance(stderr, str) else None,
                user=user if isinstance(user, str) else None,
                environment=_texts(environment) if isinstance(environment, dict) else {},
            )
    return None


def read_definition(path: Path) -> Definition | None:
    """As ``parse_definition``; also None when the file is absent or this user may not read it."""
    try:
        return parse_definition(path.read_bytes())
    except OSError:
        return None


def user_definition(platform: str, user_home: Path) -> Path:
    """The file that defines a user's own service."""
    if platform != "darwin":
        return user_home / UNITS / UNIT
    return user_home / AGENTS / f"{LABEL}.plist"


def system_definition(daemons: Path = DAEMONS) -> Path:
    """The file that defines the service of the whole Mac."""
    return daemons / f"{LABEL}.plist"


def installed_definition(
    platform: str, uid: int, user_home: Path, daemons: Path = DAEMONS
) -> Definition | None:
    """The service that a command of this user is about: the user's own, else the whole Mac's.

    For root the service of the Mac comes first, because ``sudo`` keeps the home of the user.
    """
    own = user_definition(platform, user_home)
    if platform != "darwin":
        return read_definition(own)
    files = (own, system_definition(daemons))
    found = (read_definition(file) for file in (reversed(files) if uid == 0 else files))
    return next((definition for definition in found if definition is not None), None)


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: value for name, value in values.items() if isinstance(value, str)}


def _option(words: Sequence[object], name: str) -> Path | None:
    if name not in words[:-1]:
        return None
    value = words[words.index(name) + 1]
    return Path(value) if isinstance(value, str) else None


def _unit(definition: bytes) -> Mapping[str, Any] | None:
    """The content of our own unit file, under the keys of a plist."""
    keys: dict[str, Any] = {"EnvironmentVariables": {}}
    try:
        for line in definition.decode().split("\n"):
            name, _, value = line.partition("=")
            match name:
                case "ExecStart":
                    words = shlex.split(value.replace("$$", "$"))
                    keys["ProgramArguments"] = [_plain(word) for word in words]
                case "WorkingDirectory":
                    keys[name] = _plain(value)
                case "StandardError":
                    keys["StandardErrorPath"] = _plain(value.removeprefix("append:"))
                case "Environment":
                    variable, _, text = _plain(*shlex.split(value)).partition("=")
                    keys["EnvironmentVariables"][variable] = text
    except (ValueError, TypeError):
        return None
    return keys


def _plain(text: str) -> str:
    return text.replace("%%", "%")
