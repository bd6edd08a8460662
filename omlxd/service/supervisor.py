"""The seam between the service commands and what runs the job: launchd or systemd."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock that no change of the time of day moves, and how to wait; both in seconds."""

    now: Callable[[], float]
    sleep: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class JobView:
    """What the supervisor says about the job; None is unknown. ``last_exit`` is in words."""

    loaded: bool
    pid: int | None
    last_exit: str | None


class Supervisor(Protocol):
    """What runs the job. Every method raises ServiceFailed with the reason and a remedy."""

    @property
    def name(self) -> str:
        """For people, such as ``launchd (gui/501)``."""

    @property
    def domain(self) -> str:
        """Where the job is, for the install record: ``gui/501``, ``system``, ``systemd``."""

    @property
    def note(self) -> str | None:
        """What the user should know about this place."""

    @property
    def definition(self) -> Path:
        """The file that describes the job."""

    def view(self) -> JobView: ...

    def load(self) -> None:
        """Stop what runs, then load the definition on the disk and start it."""

    def start(self) -> None:
        """Start the loaded job if it does not run."""

    def stop_process(self) -> None:
        """Ask the running process to end; the job stays loaded. Returns at once."""

    def unload(self) -> None:
        """Stop and unload the job. Returns when it is gone. No job loaded is success."""

    def remove(self) -> None:
        """Unload the job and delete its definition. No job there is success."""

    def disable(self) -> None:
        """Keep the job from starting by itself until it is loaded again."""
