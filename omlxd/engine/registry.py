"""The running requests, from their arrival until the device thread has released them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from omlxd.engine.generation import Generation, RequestPhase, RequestView
from omlxd.errors import OmlxdError


@dataclass(slots=True, eq=False)
class RunningRequest:
    """One request of a client, while its response is made.

    Attributes:
        model_id: None before it is known.
        phase: PREPARING or WAITING; None once its generations tell the phase.
        task: the task that makes the response.
        error: the error with which ``abort_arriving`` ends it.
    """

    id: str
    arrived_at: float
    task: asyncio.Task[Any]
    model_id: str | None = None
    phase: RequestPhase | None = RequestPhase.PREPARING
    error: OmlxdError | None = None


@dataclass(slots=True)
class TokensServed:
    """The tokens of all requests since the start, including cancelled requests."""

    prompt: int = 0
    """Tokens in the KV cache, whether they were computed or reused."""
    completion: int = 0

    def add(self, generation: Generation) -> None:
        self.prompt += generation.prompt_done
        self.completion += generation.completion_tokens


class RequestRegistry:
    """Lives on the event loop. ``/status``, aborts and the engine read the same registry."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        arrived: Callable[[], None] = lambda: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``arrived`` is called when a request arrives; ``changed`` also when one moves on to the
        next phase or ends."""
        self.served = TokensServed()
        self._clock = clock
        self._arrived = arrived
        self._changed = changed
        self._requests: dict[str, RunningRequest] = {}
        self._generations: dict[str, Generation] = {}

    def __len__(self) -> int:
        """Requests whose response is being made."""
        return len(self._requests)

    @property
    def arriving(self) -> int:
        """Requests that have not been submitted to the engine yet."""
        return sum(request.phase is not None for request in self._requests.values())

    def views(self) -> tuple[RequestView, ...]:
        """A view of each request before it is submitted, then of each generation.

        A cancelled generation is shown until the device thread has released it.
        """
        now = self._clock()
        early = (
            RequestView(
                id=request.id,
                model_id=request.model_id,
                phase=request.phase,
                age=max(now - request.arrived_at, 0.0),
            )
            for request in self._requests.values()
            if request.phase is not None
        )
        return (*early, *(g.view(now) for g in self._generations.values()))

    # Called by the API

    @contextmanager
    def running(self, request_id: str) -> Iterator[RunningRequest]:
        """Register a request while the current task makes its response.

        Raises the error with which ``abort_arriving`` ends it.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is registered by the task that makes its response")
        request = RunningRequest(request_id, self._clock(), task)
        self._requests[request_id] = request
        self._arrived()
        self._changed()
        try:
            yield request
        except asyncio.CancelledError:
            # Above zero: the client has left as well, and needs no error.
            if request.error is None or task.uncancel() > 0:
                raise
            raise request.error from None
        finally:
            del self._requests[request_id]
            self._changed()

    def advance(self, request: RunningRequest, phase: RequestPhase | None) -> None:
        request.phase = phase
        self._changed()

    def abort_arriving(self, error: OmlxdError) -> int:
        """End the requests that have not been submitted yet; returns how many."""
        early = [
            request
            for request in self._requests.values()
            if request.phase is not None and request.error is None
        ]
        for request in early:
            request.error = error.again()
            request.task.cancel()
        return len(early)

    # Called by the engine

    def add(self, generation: Generation) -> None:
        """Raises ValueError for an id that is taken."""
        if generation.id in self._generations:
            raise ValueError(f"request {generation.id} is open already")
        self._generations[generation.id] = generation

    def generation(self, sequence_id: str) -> Generation | None:
        return self._generations.get(sequence_id)

    def let_go(self, sequence_id: str, error: OmlxdError | None) -> None:
        """The device thread has released the request; ``error``: why it failed."""
        if (generation := self._generations.pop(sequence_id, None)) is not None:
            generation.ended(error)

    def let_all_go(self, error: OmlxdError) -> None:
        while self._generations:
            self.let_go(next(iter(self._generations)), error.again())

    def held(self, model_id: str | None = None) -> int:
        """Generations (of one model) that the device thread holds, cancelled ones included."""
        return sum(model_id in (None, g.model_id) for g in self._generations.values())

    def abort(self, model_id: str | None, error: OmlxdError) -> int:
        """Cancel every running generation (of one model) with ``error``; returns how many."""
        running = [
            g for g in self._generations.values() if not g.over and model_id in (None, g.model_id)
        ]
        for generation in running:
            generation.cancel(error.again())
        return len(running)

    def fail_queued(self, after: float, make_error: Callable[[RequestView], OmlxdError]) -> int:
        """End the generations queued on the device for ``after`` seconds; returns how many.

        ``make_error`` is called for each, because its text says how long the request has waited.
        """
        now = self._clock()
        late = [
            g
            for g in self._generations.values()
            if g.phase is RequestPhase.QUEUED and not g.over and now - g.submitted_at >= after
        ]
        for generation in late:
            generation.cancel(make_error(generation.view(now)))
        return len(late)
