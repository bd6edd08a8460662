"""What the process around the daemon gives it: where to log, whom to tell, how to stay awake."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TextIO


class Wakefulness(Protocol):
    """Keeps the machine from idle sleep while anything holds it."""

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def close(self) -> None: ...


def _nobody(code: int) -> int:
    """Nobody has to know."""
    return code


def _not_yet() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Process:
    """Attributes:
    log: where the log goes; None is stderr.
    awake: None where nothing keeps the machine awake.
    leaving: called with the exit code before the process ends without unwinding; gives the
        one to end with.
    stop_asked: whether somebody asked for a stop before the daemon listened for it.
    """

    log: TextIO | None = None
    awake: Wakefulness | None = None
    leaving: Callable[[int], int] = _nobody
    stop_asked: Callable[[], bool] = _not_yet
