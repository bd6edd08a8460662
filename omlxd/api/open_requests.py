"""The requests that are open now, for ``/status``: those on their way to the engine included."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from omlxd.errors import OmlxdError


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


@dataclass(slots=True)
class TokensServed:
    """Of all requests since the start, those cut short included."""

    prompt: int = 0
    """In the cache, be they computed or reused."""
    completion: int = 0


class OpenRequests:
    """Lives on the event loop."""

    def __init__(
        self,
        clock: Callable[[], float],
        arrived: Callable[[], None] = lambda: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``arrived`` is called for each request as it comes, ``changed`` also when one moves on
        or ends."""
        self.served = TokensServed()
        self._clock = clock
        self._arrived = arrived
        self._changed = changed
        self._open: dict[str, OpenRequest] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._ended_with: dict[str, OmlxdError] = {}

    @contextmanager
    def tracked(self, request_id: str) -> Iterator[OpenRequest]:
        """For the task that does the request's work. Raises what ``abort`` ends it with."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("requests are tracked inside a task")
        entry = OpenRequest(request_id, None, self._clock())
        self._open[request_id] = entry
        self._tasks[request_id] = task
        self._arrived()
        self._changed()
        try:
            yield entry
        except asyncio.CancelledError:
            error = self._ended_with.get(request_id)
            # Above zero: the client has left as well, which wins.
            if error is None or task.uncancel() > 0:
                raise
            raise error from None
        finally:
            del self._open[request_id]
            del self._tasks[request_id]
            self._ended_with.pop(request_id, None)
            self._changed()

    def advance(self, entry: OpenRequest, stage: Stage) -> None:
        entry.stage = stage
        self._changed()

    def abort(self, error: OmlxdError) -> int:
        """End those that the engine does not report, with ``error``; how many."""
        early = [
            name
            for name, entry in self._open.items()
            if entry.stage is not Stage.ENGINE and name not in self._ended_with
        ]
        for name in early:
            self._ended_with[name] = error.again()
            self._tasks[name].cancel()
        return len(early)

    def before_engine(self) -> tuple[tuple[OpenRequest, float], ...]:
        """(request, age in seconds) of those that the engine does not report."""
        now = self._clock()
        return tuple(
            (entry, max(now - entry.since, 0.0))
            for entry in self._open.values()
            if entry.stage is not Stage.ENGINE
        )

    @property
    def coming(self) -> int:
        """How many the engine does not report yet."""
        return sum(1 for entry in self._open.values() if entry.stage is not Stage.ENGINE)

    def __len__(self) -> int:
        return len(self._open)
