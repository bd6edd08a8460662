"""The interface of the service commands to the supervisor that runs the job: launchd or systemd."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Clock:
    """A monotonic clock, and how to wait; both in seconds."""

    now: Callable[[], float]
    sleep: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class JobView:
    """The supervisor's view of the job; None is unknown. ``last_exit`` is in words."""

    loaded: bool
    pid: int | None
    last_exit: str | None


class Supervisor(Protocol):
    """Runs the job. Every method raises ServiceFailed with the reason and a remedy."""

    @property
    def name(self) -> str:
        """For people, such as ``launchd (gui/501)``."""

    @property
    def domain(self) -> str:
        """The place of the job, for the install record: ``gui/501``, ``system``, ``systemd``."""

    @property
    def note(self) -> str | None:
        """A note for the user about this place."""

    @property
    def definition(self) -> Path:
        """The file that describes the job."""

    def view(self) -> JobView: ...

    def load(self) -> None:
        """Stop a running job, then load the definition from the disk and start it."""

    def start(self) -> None:
        """Start the loaded job if it does not run."""

    def stop_process(self) -> None:
        """Ask the running process to end; the job stays loaded. Returns at once."""

    def unload(self) -> None:
        """Stop and unload the job. Returns when it is gone, at once when no job is loaded."""

    def remove(self) -> None:
        """Unload the job and delete its definition. Succeeds when there is no job."""

    def disable(self) -> None:
        """Keep the job from starting by itself until it is loaded again."""
