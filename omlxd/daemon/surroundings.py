"""What the process around the daemon gives it: where to log, and whom to tell of its end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO


def _nobody(code: int) -> int:
    """Nobody has to know."""
    return code


def _not_yet() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Process:
    """Attributes:
    log: where the log goes; None is stderr.
    leaving: called with the exit code before the process ends without unwinding; gives the
        one to end with.
    stop_asked: whether somebody asked for a stop before the daemon listened for it.
    """

    log: TextIO | None = None
    leaving: Callable[[int], int] = _nobody
    stop_asked: Callable[[], bool] = _not_yet
