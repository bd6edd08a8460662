"""Fakes of the time, of launchctl's process and of a whole supervisor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omlxd.errors import ServiceFailed
from omlxd.service.supervisor import Clock, JobView


class Time:
    """A clock that moves only during a wait; ``then`` runs after each wait."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self.then = then

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.waits.append(seconds)
        self.then()

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.now, self.sleep)


class FakeRun:
    """Answers launchctl calls from a table: verb -> codes in order; the last one stays."""

    def __init__(self, **answers: Sequence[int | None]) -> None:
        self._answers = {verb: list(codes) for verb, codes in answers.items()}
        self.calls: list[tuple[str, ...]] = []
        self.limits: list[float] = []

    def __call__(self, command: Sequence[str], limit: float) -> tuple[int | None, str]:
        self.calls.append(tuple(command[1:]))
        self.limits.append(limit)
        codes = self._answers.get(command[1], [0])
        return (codes.pop(0) if len(codes) > 1 else codes[0]), f"{command[1]} said something"

    @property
    def verbs(self) -> list[str]:
        return [call[0] for call in self.calls]


@dataclass
class FakeSupervisor:
    """Keeps one definition loaded; ``on_start`` plays the job."""

    folder: Path
    on_start: Callable[[bytes], None]
    loaded: bytes | None = None
    refuses: set[bytes] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    pid: int | None = None
    last_exit: str | None = None
    name: str = "fake"
    domain: str = "gui/501"
    note: str | None = None

    @property
    def definition(self) -> Path:
        return self.folder / "job.plist"

    def view(self) -> JobView:
        return JobView(self.loaded is not None, self.pid, self.last_exit)

    def load(self) -> None:
        self.done.append("load")
        content = self.definition.read_bytes()
        if content in self.refuses:
            raise ServiceFailed("launchd refused")
        self.loaded = content
        self.on_start(content)

    def start(self) -> None:
        self.done.append("start")
        assert self.loaded is not None
        self.on_start(self.loaded)

    def stop_process(self) -> None:
        self.done.append("stop_process")

    def unload(self) -> None:
        self.done.append("unload")
        self.loaded = None

    def remove(self) -> None:
        self.unload()
        self.definition.unlink(missing_ok=True)

    def disable(self) -> None:
        self.done.append("disable")
