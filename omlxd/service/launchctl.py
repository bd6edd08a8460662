"""The one wrapper of ``launchctl``: a call in, a typed outcome out, never longer than its limit."""

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import structlog

from omlxd.service.names import EXIT_TIMEOUT

log = structlog.get_logger(__name__)

PATH = "/bin/launchctl"
LIMIT = EXIT_TIMEOUT + 15.0
"""Seconds for one call; some wait for the job's end, so more than ExitTimeOut."""


class Code(IntEnum):
    """Exit codes with a meaning for us. launchctl has many more: ``launchctl error N``."""

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
class Outcome:
    """``code`` None: the call did not return within its limit, or could not be started."""

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
"""Command and limit in seconds -> exit code (None: none in time) and what it wrote."""


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
class Listed:
    """What the stable ``launchctl list LABEL`` says; None is not said."""

    pid: int | None
    last_exit: int | None
    """Wait status: a signal's number, or the exit code times 256."""


class Launchctl:
    """Targets are ``DOMAIN/LABEL``, such as ``gui/501/io.github.omlxd.omlxd``."""

    def __init__(self, path: str = PATH, run: Run = run_process) -> None:
        self._path = path
        self._run = run

    def bootstrap(self, domain: str, plist: str) -> Outcome:
        return self._call("bootstrap", domain, plist)

    def bootout(self, target: str) -> Outcome:
        """Asynchronous, and always by target: the form with a path gives 5 for what is not there,
        and ``--wait`` is not understood everywhere."""
        return self._call("bootout", target)

    def kickstart(self, target: str) -> Outcome:
        """Start the job if it does not run (-k would kill it without a word)."""
        return self._call("kickstart", target)

    def kill(self, signal: str, target: str) -> Outcome:
        return self._call("kill", signal, target)

    def enable(self, target: str) -> Outcome:
        return self._call("enable", target)

    def disable(self, target: str) -> Outcome:
        return self._call("disable", target)

    def print(self, target: str) -> Outcome:
        """Only the code counts: the text is not an interface."""
        return self._call("print", target)

    def list(self, label: str) -> Listed | None:
        """Of the caller's own session; None when the label is not there."""
        outcome = self._call("list", label)
        if not outcome.ok:
            return None
        return Listed(_number(outcome.text, "PID"), _number(outcome.text, "LastExitStatus"))

    def _call(self, *arguments: str) -> Outcome:
        code, text = self._run((self._path, *arguments), LIMIT)
        outcome = Outcome(arguments, code, text)
        log.debug("launchctl", call=arguments[0], target=arguments[-1], code=code)
        return outcome


def _number(text: str, key: str) -> int | None:
    match = re.search(rf'"{key}"\s*=\s*(-?\d+);', text)
    return None if match is None else int(match[1])
