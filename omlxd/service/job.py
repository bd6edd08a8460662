"""What the service runs, as plain data: names, interpreter, arguments, folders, environment."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from omlxd.errors import ServiceFailed

LABEL = "io.github.omlxd.omlxd"
UNIT = "omlxd.service"
HOMEBREW_LABEL = "homebrew.mxcl.omlxd"

EXIT_TIMEOUT = 30.0
"""Seconds from SIGTERM to SIGKILL, as the job's definition says (ExitTimeOut)."""

LOG = "omlxd.log"
STDOUT = "launchd-stdout.log"
STDERR = "launchd-stderr.log"

FOLDERS = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
)
CARRIED = (
    *FOLDERS,
    *("HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_XET"),
)
"""Variables of the installing shell. The service needs them to find the same files. No tokens."""

_SECRET_IN_URL = re.compile(r"://([^/]*@|.*[?#])")
_ODD = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_OPENBLAS = re.compile(r"/(.*/)?libopenblas[^/]*\.so[^/]*")


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
    home: the value of ``--home``; None for the platform's own places.
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
    """The command line of the job. Every path is absolute."""
    command = [
        job.interpreter,
        *("-m", "omlxd", "serve", "--supervised"),
        *("--config", str(job.config_file)),
    ]
    return command if job.home is None else [*command, "--home", str(job.home)]


def carried_environment(environ: Mapping[str, str], *, linux: bool = False) -> dict[str, str]:
    """The part of ``environ`` that goes into the job's definition. Every user may read that file.

    ``linux``: also OpenBLAS, if LD_PRELOAD loads it instead of the slow BLAS of MLX's CPU build.
    """
    secret = with_secrets(environ)
    carried = {
        name: _absolute(value) if name in FOLDERS else value
        for name in CARRIED
        if (value := environ.get(name)) and name not in secret
    }
    preload = re.split("[: ]", environ.get("LD_PRELOAD", "") if linux else "")
    blas = ":".join(file for file in preload if _OPENBLAS.fullmatch(file))
    return {**carried, "LD_PRELOAD": blas} if blas else carried


def with_secrets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that are left out because their URL may hold a password or a token."""
    return tuple(name for name in CARRIED if _SECRET_IN_URL.search(environ.get(name, "")))


def _absolute(folder: str) -> str:
    """The absolute path of ``folder``. ``~NAME`` of an unknown user stays, and is refused later."""
    folder = os.path.expanduser(folder)
    return folder if folder.startswith("~") else os.path.abspath(folder)


def is_odd(text: str) -> bool:
    """Whether a definition cannot hold ``text``: it has control characters or is no UTF-8."""
    return _ODD.search(text) is not None


def check(job: JobSpec) -> None:
    """Raises ServiceFailed with the first path or setting that a supervisor cannot use."""
    paths = {
        "the interpreter": job.interpreter,
        "the configuration file": str(job.config_file),
        "the state folder": str(job.state),
        "the log folder": str(job.logs),
        "the home folder": str(job.home or "/"),
    }
    folders = {name: job.environment[name] for name in FOLDERS if name in job.environment}
    for name, text in {**paths, **job.environment}.items():
        if is_odd(text):
            raise ServiceFailed(f"{name} has a character that cannot be used here: {text!r}")
    for name, path in {**paths, **folders}.items():
        if not path.startswith("/"):
            raise ServiceFailed(f"{name} must be an absolute path, not {path!r}")
    for name, path in paths.items():
        if any(place.startswith("/Volumes/") for place in (path, os.path.realpath(path))):
            raise ServiceFailed(
                f"{name} is on an external volume ({path}). It may be absent at login, and macOS "
                "keeps jobs from reading it. Keep omlxd itself on the internal disk (--home); "
                "only models belong on other volumes."
            )
