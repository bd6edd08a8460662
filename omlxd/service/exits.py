"""How the daemon ends: its exit code, the record of its last exit, and the end of restart loops.

launchd restarts after every non-zero exit (KeepAlive, SuccessfulExit false), ten seconds apart, and
never gives up. Two kinds of failure must not restart for ever. 1. A mistake that only a person can
correct: under a supervisor the exit code is 0, and ``omlxd service status`` shows the record. 2. A
crash at every start that leaves no error (a native abort, or the kernel kills the process while
models load): it is found by counting the starts, see ``count_start``.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum, IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import structlog

from omlxd.errors import AlreadyRunning, ConfigError, OmlxdError, PortTaken
from omlxd.store import peek_json, write_json

log = structlog.get_logger(__name__)

LAST_EXIT = "last_exit.json"
STARTS = "starts.json"
MOST_STARTS: Final = 6
"""Starts in a row, each after a short life. One more start is a restart loop."""
SHORT_LIFE: Final = 900.0
"""Seconds; a process that lived longer is not part of a restart loop."""


class ExitCode(IntEnum):
    STOPPED = 0
    FAILED = 1
    RESTART = 75  # EX_TEMPFAIL of sysexits.h: try again
    CONFIG = 78  # EX_CONFIG of sysexits.h


class Ending(Enum):
    STOPPED = "stopped"
    """It was asked to stop, and stopped."""
    CONFIG = "config"
    """The configuration is wrong."""
    BLOCKED = "blocked"
    """Another process has the port or the data folder."""
    LOOPING = "looping"
    """It was started many times and never lived long."""
    BROKEN = "broken"
    """Any other error; a new process may succeed."""


PERMANENT = frozenset({Ending.CONFIG, Ending.BLOCKED, Ending.LOOPING})


@dataclass(frozen=True, slots=True)
class LastExit:
    """Attributes:
    at: when, seconds since 1970.
    instance_id: of the instance that ended; None when the process ended before it had an id.
    code: the exit code of the process.
    error: the stable code of the error; None after a requested stop.
    """

    at: float
    pid: int
    instance_id: str | None
    ending: Ending
    code: int
    error: str | None
    message: str | None
    supervised: bool


@dataclass(frozen=True, slots=True)
class ExitingProcess:
    """``instance_id``: None until it is set; ``supervised``: launchd or systemd started it."""

    pid: int
    instance_id: str | None
    supervised: bool


def ending_of(error: BaseException | None) -> Ending:
    """The kind of ending for ``error``; None is a requested stop."""
    match error:
        case None:
            return Ending.STOPPED
        case ConfigError():
            return Ending.CONFIG
        case PortTaken() | AlreadyRunning():
            return Ending.BLOCKED
        case _:
            return Ending.BROKEN


def exit_code(ending: Ending, *, supervised: bool) -> ExitCode:
    """``supervised``: launchd or systemd started the process, and restarts non-zero exits."""
    match ending:
        case Ending.STOPPED:
            return ExitCode.STOPPED
        case Ending.BROKEN:
            return ExitCode.RESTART
        case Ending.CONFIG:
            return ExitCode.STOPPED if supervised else ExitCode.CONFIG
        case Ending.BLOCKED | Ending.LOOPING:
            return ExitCode.STOPPED if supervised else ExitCode.FAILED


def record_exit(
    state: Path, error: BaseException | None, process: ExitingProcess, *, now: float
) -> int:
    """Record the end of ``process`` and return its exit code. A disk error is never raised.

    A second start that finds the data folder taken (``AlreadyRunning``) is recorded too: the
    installer must see it, and the running instance records its own exit later.
    """
    ending = ending_of(error)
    if ending is Ending.STOPPED:
        forget_starts(state)
    return record_ending(state, ending, error, process, now=now)


def record_ending(
    state: Path,
    ending: Ending,
    error: BaseException | None,
    process: ExitingProcess,
    *,
    now: float,
) -> int:
    """Like ``record_exit``, for an ending that has no error class of its own."""
    code = exit_code(ending, supervised=process.supervised)
    last = LastExit(
        at=now,
        pid=process.pid,
        instance_id=process.instance_id,
        ending=ending,
        code=int(code),
        error=_code_of(error),
        message=None if error is None else str(error) or type(error).__name__,
        supervised=process.supervised,
    )
    try:
        write_json(state / LAST_EXIT, {**asdict(last), "ending": ending.value})
    except OSError as failure:
        log.warning("last_exit_not_recorded", folder=str(state), error=str(failure))
    return int(code)


def read_last_exit(state: Path) -> LastExit | None:
    """None when there is no record, or its file is damaged."""
    value = peek_json(state / LAST_EXIT)
    if value is None:
        return None
    known: dict[str, Any] = {key: value.get(key) for key in LastExit.__dataclass_fields__}
    try:
        return LastExit(**{**known, "ending": Ending(known["ending"]), "at": float(known["at"])})
    except (TypeError, ValueError):
        return None


def _code_of(error: BaseException | None) -> str | None:
    if error is None:
        return None
    return error.code if isinstance(error, OmlxdError) else type(error).__name__


def in_a_row(starts: Sequence[float], now: float) -> tuple[float, ...]:
    """The newest of ``starts`` up to ``now`` that are less than ``SHORT_LIFE`` apart.

    A clean stop removes all starts, so each of these ended badly. A time in the future (the clock
    was set) begins a new row.
    """
    row: list[float] = []
    for later, earlier in pairwise((now, *reversed(starts))):
        if not 0 <= later - earlier < SHORT_LIFE:
            break
        row.append(earlier)
    return tuple(reversed(row))


def is_looping(starts: Sequence[float], now: float) -> bool:
    """Whether the start at ``now``, the last of ``starts``, exceeds ``MOST_STARTS``."""
    return len(in_a_row(starts, now)) > MOST_STARTS


def count_start(state: Path, now: float) -> bool:
    """Count a supervised start. Returns whether it belongs to a restart loop and must end.

    When the disk cannot be written, the start is not counted.
    """
    starts = (*in_a_row(_read_starts(state), now), now)
    try:
        write_json(state / STARTS, {"starts": list(starts)})
    except OSError as failure:
        log.warning("start_not_counted", folder=str(state), error=str(failure))
    return is_looping(starts, now)


def is_counted(state: Path, since: float) -> bool:
    """Whether a start at or after ``since`` is on the disk. If not, a loop would never end."""
    return any(at >= since for at in _read_starts(state))


def forget_starts(state: Path) -> None:
    """Count from zero again, after a clean stop or because a person starts the service."""
    with contextlib.suppress(OSError):
        (state / STARTS).unlink(missing_ok=True)


def _read_starts(state: Path) -> tuple[float, ...]:
    value = peek_json(state / STARTS) or {}
    starts = value.get("starts")
    if not isinstance(starts, list):
        return ()
    return tuple(float(at) for at in starts if isinstance(at, int | float))
