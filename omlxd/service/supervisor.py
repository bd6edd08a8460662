"""The seam between the service commands and what runs the job: launchd or systemd."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Pace:
    """A clock that stands for nobody's civil time, and how to wait; both in seconds."""

    now: Callable[[], float]
    sleep: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class JobView:
    """What the supervisor says of the job. ``last_exit`` is in words; None is not known."""

    loaded: bool
    pid: int | None
    last_exit: str | None


class Supervisor(Protocol):
    """Every method raises ServiceFailed with the reason and a remedy."""

    @property
    def name(self) -> str:
        """Such as ``launchd (gui/501)``."""

    @property
    def domain(self) -> str:
        """Where the job is, to be remembered: ``gui/501``, ``system``, ``systemd``."""

    @property
    def note(self) -> str | None:
        """What a person should know about this place."""

    @property
    def definition(self) -> Path:
        """The file that describes the job."""

    def view(self) -> JobView: ...

    def load(self) -> None:
        """Make the definition on disk the running one, stopping what ran before."""

    def start(self) -> None:
        """Start the loaded job if it does not run."""

    def stop_process(self) -> None:
        """Ask the running process to end; the job stays loaded. Returns at once."""

    def unload(self) -> None:
        """Stop the job and take it out; returns when it is gone. Nothing loaded is success."""

    def remove(self) -> None:
        """Unload the job and delete its definition. Nothing there is success."""

    def disable(self) -> None:
        """Keep it from starting by itself until it is loaded again."""
