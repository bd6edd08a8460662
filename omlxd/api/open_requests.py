"""The requests that are open now, for ``/status``: those on their way to the engine included."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum


class Stage(Enum):
    """What a request waits for before the engine knows it."""

    PREPARING = "preparing"
    """Its template and its tokens."""
    WAITING = "waiting"
    """Its model: the line for memory, or the load."""
    ENGINE = "engine"
    """The engine reports it."""


@dataclass(slots=True)
class OpenRequest:
    id: str
    model_id: str | None
    since: float
    stage: Stage = Stage.PREPARING


class OpenRequests:
    """Lives on the event loop."""

    def __init__(
        self,
        clock: Callable[[], float],
        arrived: Callable[[], None] = lambda: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``arrived`` is called for each request as it comes, ``changed`` also when one ends."""
        self._clock = clock
        self._arrived = arrived
        self._changed = changed
        self._open: dict[str, OpenRequest] = {}

    @contextmanager
    def tracked(self, request_id: str) -> Iterator[OpenRequest]:
        entry = OpenRequest(request_id, None, self._clock())
        self._open[request_id] = entry
        self._arrived()
        self._changed()
        try:
            yield entry
        finally:
            del self._open[request_id]
            self._changed()

    def before_engine(self) -> tuple[tuple[OpenRequest, float], ...]:
        """(request, age in seconds) of those that the engine does not report."""
        now = self._clock()
        return tuple(
            (entry, max(now - entry.since, 0.0))
            for entry in self._open.values()
            if entry.stage is not Stage.ENGINE
        )

    def __len__(self) -> int:
        return len(self._open)
