"""Reads an installed definition back, a plist or a unit file: what it starts, and where."""

import plistlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

from omlxd.service.names import LABEL, UNIT

AGENTS = Path("Library/LaunchAgents")
"""Below the home of the user, as is the next."""
UNITS = Path(".config/systemd/user")
DAEMONS = Path("/Library/LaunchDaemons")

_UNREADABLE = (
    plistlib.InvalidFileException,
    ExpatError,
    ValueError,
    AttributeError,  # of a date that is none
    LookupError,  # of an encoding that is none
)


@dataclass(frozen=True, slots=True)
class Written:
    """What a definition says; None is not said.

    Attributes:
        home, config_file: as ``--home`` and ``--config`` of the daemon.
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


def read_back(definition: bytes) -> Written | None:
    """None when it is neither, or damaged."""
    try:
        keys = plistlib.loads(definition)
    except _UNREADABLE:
        keys = _unit(definition)
    match keys:
        case {"ProgramArguments": [str(interpreter), *words]}:
            state, stderr = keys.get("WorkingDirectory"), keys.get("StandardErrorPath")
            user, environment = keys.get("UserName"), keys.get("EnvironmentVariables")
            return Written(
                interpreter=interpreter,
                home=_option(words, "--home"),
                config_file=_option(words, "--config"),
                state=Path(state) if isinstance(state, str) else None,
                logs=Path(stderr).parent if isinstance(stderr, str) else None,
                user=user if isinstance(user, str) else None,
                environment=_texts(environment) if isinstance(environment, dict) else {},
            )
    return None


def read_file(path: Path) -> Written | None:
    """None when it is not there either, or closed to us."""
    try:
        return read_back(path.read_bytes())
    except OSError:
        return None


def of_user(platform: str, user_home: Path) -> Path:
    """The definition of a user's own service."""
    if platform != "darwin":
        return user_home / UNITS / UNIT
    return user_home / AGENTS / f"{LABEL}.plist"


def of_mac(daemons: Path = DAEMONS) -> Path:
    """The definition of the service of the whole Mac."""
    return daemons / f"{LABEL}.plist"


def installed(platform: str, uid: int, user_home: Path, daemons: Path = DAEMONS) -> Written | None:
    """The service that a command of this user means: their own, else that of the whole Mac.

    Root's is that of the Mac first: ``sudo`` keeps the home of the user.
    """
    own = of_user(platform, user_home)
    if platform != "darwin":
        return read_file(own)
    files = (own, of_mac(daemons))
    found = (read_file(file) for file in (reversed(files) if uid == 0 else files))
    return next((written for written in found if written is not None), None)


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: value for name, value in values.items() if isinstance(value, str)}


def _option(words: Sequence[object], name: str) -> Path | None:
    if name not in words[:-1]:
        return None
    value = words[words.index(name) + 1]
    return Path(value) if isinstance(value, str) else None


def _unit(definition: bytes) -> Mapping[str, Any] | None:
    """Our own unit file, under the names of a plist."""
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
