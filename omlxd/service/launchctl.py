"""Calls ``launchctl``: its commands, the meaning of its exit codes, and what to do after each."""

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

import structlog

from omlxd.service.job import EXIT_TIMEOUT

log = structlog.get_logger(__name__)

PATH = "/bin/launchctl"
LIMIT = EXIT_TIMEOUT + 15.0
"""Seconds for one call. More than ExitTimeOut, because some calls wait for the end of the job."""
BOOTSTRAP_DELAYS: Final = (0.5, 1.0, 2.0, 4.0)
"""Seconds to wait before each retry of ``bootstrap``."""


class Code(IntEnum):
    """The exit codes that matter here; ``launchctl error N`` explains the others."""

    OK = 0
    NO_PROCESS = 3
    IO_ERROR = 5
    EXISTS = 17
    IN_PROGRESS = 37
    USAGE = 64
    NO_DOMAIN = 112
    NOT_FOUND = 113
    DISABLED = 119
    DOMAIN_UNSUPPORTED = 125


@dataclass(frozen=True, slots=True)
class CallResult:
    """``code``: None when the call did not return within its limit, or could not be started."""

    arguments: tuple[str, ...]
    code: int | None
    text: str

    @property
    def ok(self) -> bool:
        return self.code == Code.OK

    def __str__(self) -> str:
        call = "launchctl " + " ".join(self.arguments)
        said = f": {self.text.strip()}" if self.text.strip() else ""
        return f"`{call}` " + ("did not return" if self.code is None else f"gave {self.code}{said}")


Run = Callable[[Sequence[str], float], tuple[int | None, str]]
"""Command and limit in seconds -> exit code (None when there was none in time) and output."""


def run_process(command: Sequence[str], limit: float) -> tuple[int | None, str]:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {limit:.0f} s"
    except OSError as error:
        return None, f"{command[0]}: {error.strerror}"
    return done.returncode, done.stdout + done.stderr


@dataclass(frozen=True, slots=True)
class ListedJob:
    """The output of ``launchctl list LABEL``, which is stable; None for a value that it lacks."""

    pid: int | None
    last_exit: int | None
    """A wait status: the number of a signal, or the exit code times 256."""


class Launchctl:
    """Targets are ``DOMAIN/LABEL``, such as ``gui/501/io.github.omlxd.omlxd``."""

    def __init__(self, path: str = PATH, run: Run = run_process) -> None:
        self._path = path
        self._run = run

    def bootstrap(self, domain: str, plist: str) -> CallResult:
        return self._call("bootstrap", domain, plist)

    def bootout(self, target: str) -> CallResult:
        """Returns before the job has ended.

        Always by target: the form with a path returns 5 when the job is not there. No ``--wait``:
        some releases do not know it.
        """
        return self._call("bootout", target)

    def kickstart(self, target: str) -> CallResult:
        """Start the job if it does not run. (-k would kill it with SIGKILL.)"""
        return self._call("kickstart", target)

    def kill(self, signal: str, target: str) -> CallResult:
        return self._call("kill", signal, target)

    def enable(self, target: str) -> CallResult:
        return self._call("enable", target)

    def disable(self, target: str) -> CallResult:
        return self._call("disable", target)

    def print(self, target: str) -> CallResult:
        """Use only the exit code: the text of ``print`` is not an interface."""
        return self._call("print", target)

    def load_state(self, target: str) -> "LoadState":
        """Whether a job or a domain exists."""
        return load_state(self.print(target).code)

    def list(self, label: str) -> ListedJob | None:
        """The job in the caller's own session; None when the label is not there."""
        result = self._call("list", label)
        if not result.ok:
            return None
        return ListedJob(_number(result.text, "PID"), _number(result.text, "LastExitStatus"))

    def _call(self, *arguments: str) -> CallResult:
        code, text = self._run((self._path, *arguments), LIMIT)
        log.debug("launchctl", call=arguments[0], target=arguments[-1], code=code)
        return CallResult(arguments, code, text)


def _number(text: str, key: str) -> int | None:
    match = re.search(rf'"{key}"\s*=\s*(-?\d+);', text)
    return None if match is None else int(match[1])


class LoadState(Enum):
    """What the exit code of ``print`` says about a job or a domain."""

    LOADED = "loaded"
    NOT_LOADED = "not loaded"
    NO_DOMAIN = "no domain"
    UNCLEAR = "unclear"


def load_state(code: int | None) -> LoadState:
    match code:
        case Code.OK:
            return LoadState.LOADED
        case Code.NOT_FOUND:
            return LoadState.NOT_LOADED
        case Code.NO_DOMAIN | Code.DOMAIN_UNSUPPORTED:
            return LoadState.NO_DOMAIN
        case _:
            return LoadState.UNCLEAR


def bootout_is_under_way(code: int | None) -> bool:
    """Whether to wait until the job is gone. If not, the code is a refusal and must be reported.

    3, 112, 113 and 125: there is nothing to stop. 37: another bootout already runs. 5: launchd may
    return it for a job that is still draining.
    """
    return code in (
        Code.OK,
        Code.NO_PROCESS,
        Code.IO_ERROR,
        Code.IN_PROGRESS,
        Code.NO_DOMAIN,
        Code.NOT_FOUND,
        Code.DOMAIN_UNSUPPORTED,
    )


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """The job is loaded."""


@dataclass(frozen=True, slots=True)
class RetryBootstrap:
    """Wait ``delay`` seconds, remove the rest of the job, enable the label, and try again."""

    delay: float


@dataclass(frozen=True, slots=True)
class BootstrapFailed:
    """Another try would not help."""


AfterBootstrap = Bootstrapped | RetryBootstrap | BootstrapFailed


def after_bootstrap(code: int | None, tries: int, *, loaded: bool) -> AfterBootstrap:
    """``tries``: the bootstraps made so far; ``loaded``: whether ``print`` finds the job now.

    launchd also returns 37 for a job that it has just loaded. After 5 and 17 the loaded job may be
    the old one that still drains, so it is removed before the next try.
    """
    if code == Code.OK or (code == Code.IN_PROGRESS and loaded):
        return Bootstrapped()
    passing = code in (Code.IO_ERROR, Code.EXISTS, Code.IN_PROGRESS, Code.DISABLED)
    if passing and tries <= len(BOOTSTRAP_DELAYS):
        return RetryBootstrap(BOOTSTRAP_DELAYS[tries - 1])
    return BootstrapFailed()


def describe_wait_status(status: int) -> str:
    """A wait status of ``launchctl list`` in words."""
    if status == 0:
        return "exit code 0"
    if status < 256:
        return f"signal {abs(status)}"
    code = status >> 8
    if code == 78:
        return (
            "exit code 78 before it could start: launchd could not open the log files or enter "
            "the state folder (missing, not writable, or on an external volume)"
        )
    return f"exit code {code}"


def explain(code: int | None, domain: str) -> str:
    """What a failed ``launchctl`` call means for the user, and what to try."""
    match code:
        case Code.IO_ERROR:
            return (
                "launchd does not say why (its code 5). Usual reasons: the property list is not "
                "yours or others may write to it; a path in it is on an external volume; the job "
                "was switched off under System Settings > General > Login Items. Its own words: "
                "log show --last 2m --predicate 'process == \"launchd\"'"
            )
        case Code.NO_DOMAIN | Code.DOMAIN_UNSUPPORTED:
            return (
                f"there is no domain {domain}: nobody with this account is logged in there. Log in "
                "at the screen, or install a daemon that needs no login: "
                "sudo omlxd service install --system --user NAME"
            )
        case Code.DISABLED:
            return (
                "the job is switched off: allow it under System Settings > General > Login Items "
                "& Extensions, then run this again"
            )
        case Code.IN_PROGRESS | Code.EXISTS:
            return "another copy of the job is still there; wait half a minute and run this again"
        case Code.NOT_FOUND | Code.NO_PROCESS:
            return "the job is not loaded; run `omlxd service install`"
        case Code.USAGE:
            return "this launchctl does not know the call; please report it with your macOS version"
        case None:
            return "launchctl did not return in time or could not be started"
        case _:
            return f"`launchctl error {code}` tells what {code} means"
