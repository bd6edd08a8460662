"""What the service runs: interpreter, arguments, folders and environment, as plain data."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from omlxd.errors import ServiceFailed
from omlxd.service.names import STDERR, STDOUT

CARRIED = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "HF_HUB_DISABLE_TELEMETRY",
    "HF_HUB_DISABLE_XET",
    "HF_ENDPOINT",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
)
"""Settings of the installing shell that the service needs to find the same files. No tokens."""

_CREDENTIALS_IN_URL = re.compile(r"://[^/]*@")


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a system daemon runs as."""

    name: str
    uid: int
    gid: int
    home: Path


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Attributes:
    interpreter: absolute, symbolic links unresolved.
    home: what ``--home`` gets; None for the platform's own places.
    account: for a system daemon only.
    """

    interpreter: str
    config_file: Path
    state: Path
    logs: Path
    home: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    account: Account | None = None

    @property
    def stdout(self) -> Path:
        return self.logs / STDOUT

    @property
    def stderr(self) -> Path:
        return self.logs / STDERR


def arguments(job: JobSpec) -> list[str]:
    """The command line of the job, every path absolute."""
    command = [
        job.interpreter,
        *("-m", "omlxd", "serve", "--supervised"),
        *("--config", str(job.config_file)),
    ]
    return command if job.home is None else [*command, "--home", str(job.home)]


def carried_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of ``environ`` that goes into the job's definition, which everybody may read."""
    return {
        name: value
        for name in CARRIED
        if (value := environ.get(name)) and not _CREDENTIALS_IN_URL.search(value)
    }


def left_behind(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Our own settings in ``environ`` that the service will not see."""
    known = {"OMLXD_HOME", "OMLXD_CONFIG"}
    return tuple(sorted(n for n in environ if n.startswith("OMLXD_") and n not in known))


def check(job: JobSpec) -> None:
    """Raises ServiceFailed naming the first path that a supervisor could not use."""
    paths = {
        "the interpreter": job.interpreter,
        "the configuration file": str(job.config_file),
        "the state folder": str(job.state),
        "the log folder": str(job.logs),
        "the home folder": str(job.home or "/"),
    }
    for name, path in paths.items():
        if not path.startswith("/"):
            raise ServiceFailed(f"{name} must be an absolute path, not {path!r}")
        if any(ord(character) < 32 for character in path):
            raise ServiceFailed(f"{name} has a control character in its path: {path!r}")
        if any(place.startswith("/Volumes/") for place in (path, os.path.realpath(path))):
            raise ServiceFailed(
                f"{name} is on an external volume ({path}). It may be absent at login, and macOS "
                "keeps jobs from reading it. Keep omlxd itself on the internal disk (--home); "
                "only models belong on other volumes."
            )
