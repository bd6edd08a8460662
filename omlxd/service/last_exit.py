"""Remembers how the daemon last ended, for ``omlxd service status`` and the installer."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from omlxd.errors import OmlxdError
from omlxd.service import restarts
from omlxd.service.exit_codes import Ending, ending_of, exit_code
from omlxd.store import peek_json, write_json

log = structlog.get_logger(__name__)

NAME = "last_exit.json"


@dataclass(frozen=True, slots=True)
class LastExit:
    """Attributes:
    at: when, seconds since 1970.
    instance_id: of the instance that ended; None when it ended before it had one.
    code: the exit code it left with.
    error: the stable code of the error; None for a stop that was asked for.
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
class Leaving:
    """Who is about to end: the process, its instance if it got one, and who started it."""

    pid: int
    instance_id: str | None
    supervised: bool


def conclude(state: Path, error: BaseException | None, who: Leaving, *, now: float) -> int:
    """Record the ending in ``state`` and give the exit code. Never raises for a bad disk.

    A second start that finds the data folder taken (``AlreadyRunning``) is recorded too: the
    installer must learn of it, and the running instance writes its own ending later.
    """
    ending = ending_of(error)
    if ending is Ending.STOPPED:
        restarts.forget(state)
    return record(state, ending, error, who, now=now)


def record(
    state: Path, ending: Ending, error: BaseException | None, who: Leaving, *, now: float
) -> int:
    """As ``conclude``, for an ending that no error class stands for."""
    code = exit_code(ending, supervised=who.supervised)
    last = LastExit(
        at=now,
        pid=who.pid,
        instance_id=who.instance_id,
        ending=ending,
        code=int(code),
        error=_code_of(error),
        message=None if error is None else str(error) or type(error).__name__,
        supervised=who.supervised,
    )
    try:
        write_json(state / NAME, {**asdict(last), "ending": ending.value})
    except OSError as failure:
        log.warning("last_exit_not_recorded", folder=str(state), error=str(failure))
    return int(code)


def read(state: Path) -> LastExit | None:
    """The last ending; None when there is none or its file is damaged."""
    value = peek_json(state / NAME)
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
