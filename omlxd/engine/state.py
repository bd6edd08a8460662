"""What the event loop knows of the device thread, and the replies that it waits for."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar, assert_never

import structlog

from omlxd.backend.protocol import BackendInfo
from omlxd.engine.messages import (
    BackendReady,
    BufferCacheReclaimed,
    Event,
    LoadFailed,
    LoadFinished,
    LoadProgress,
    ModelInfo,
    RequestEnded,
    Sampled,
    Stepped,
    Unloaded,
)
from omlxd.engine.registry import RequestRegistry
from omlxd.errors import OmlxdError
from omlxd.policy.readings import AllocatorSample

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Reply(Generic[T]):
    """A value or an error to come from the device thread.

    Any number of tasks may wait for it; one that stops waiting changes nothing.
    """

    def __init__(self) -> None:
        self._future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # Without this asyncio would warn of an error that no task waits for.
        self._future.add_done_callback(lambda f: f.cancelled() or f.exception())

    @property
    def given(self) -> bool:
        return self._future.done()

    def give(self, value: T) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: OmlxdError) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    async def wait(self) -> T:
        return await asyncio.shield(self._future)


class LoadTicket:
    """A load in progress. The byte counts are None until its first piece is loaded."""

    def __init__(self, load_id: int, model_id: str, cancel: Callable[[int], None]) -> None:
        self.load_id = load_id
        self.model_id = model_id
        self.loaded_bytes: int | None = None
        self.total_bytes: int | None = None
        self.reply: Reply[ModelInfo] = Reply()
        self.sized: Reply[int] = Reply()
        self._cancel = cancel

    async def result(self) -> ModelInfo:
        """What is known of the loaded model. A task that stops waiting does not cancel the load.

        Raises ModelLoadFailed, ModelBroken, ModelLoadCancelled, ShuttingDown or EngineDied.
        """
        return await self.reply.wait()

    async def size(self) -> int:
        """Bytes of all pieces, once they are known. Never returns if the load ends before that."""
        return await self.sized.wait()

    def cancel(self) -> None:
        """Stop at the next piece; no effect on a load that has ended."""
        if not self.reply.given:
            self._cancel(self.load_id)


@dataclass(frozen=True, slots=True)
class EngineView:
    """What one model holds: ``held`` requests now; the other numbers are of its latest step."""

    held: int = 0
    cache_bytes: int = 0
    last_step_at: float | None = None


@dataclass(slots=True)
class EngineState:
    """Requests, loads, and what was asked of the device thread. For the event loop only."""

    clock: Callable[[], float]
    requests: RequestRegistry
    ready: Reply[BackendInfo]
    loads: dict[int, LoadTicket] = field(default_factory=dict)
    unloads: dict[str, list[Reply[int]]] = field(default_factory=dict)
    samples: list[Reply[AllocatorSample]] = field(default_factory=list)
    views: dict[str, EngineView] = field(default_factory=dict)
    info: BackendInfo | None = None
    latest_sample: AllocatorSample | None = None
    reclaimed_bytes: int = 0

    def view(self, model_id: str) -> EngineView:
        return replace(self.views.get(model_id, EngineView()), held=self.requests.held(model_id))

    def apply(self, events: Sequence[Event]) -> None:
        for event in events:
            self._apply(event)

    def close(self, error: OmlxdError) -> None:
        """The device thread has ended: everything that is open ends with ``error``."""
        self.requests.let_all_go(error)
        for ticket in self.loads.values():
            ticket.reply.fail(error.again())
        self.loads.clear()
        for replies in self.unloads.values():
            for reply in replies:
                reply.fail(error.again())
        self.unloads.clear()
        for sample in self.samples:
            sample.fail(error.again())
        self.samples.clear()
        self.ready.fail(error.again())
        self.views.clear()

    def _apply(self, event: Event) -> None:
        match event:
            case Stepped():
                self._note_step(event)
            case RequestEnded(request_id, error):
                self.requests.let_go(request_id, error)
            case Sampled(sample):
                self._note_sample(sample)
            case LoadProgress() | LoadFinished() | LoadFailed():
                self._note_load(event)
            case Unloaded(model_id, freed):
                self.views.pop(model_id, None)
                for reply in self.unloads.pop(model_id, []):
                    reply.give(freed)
            case BufferCacheReclaimed(freed):
                self.reclaimed_bytes += freed
                log.info("pool_reclaimed", freed_bytes=freed)
            case BackendReady(info):
                self.info = info
                self.ready.give(info)
            case _:
                assert_never(event)

    def _note_step(self, event: Stepped) -> None:
        self.views[event.model_id] = EngineView(
            cache_bytes=event.cache_bytes, last_step_at=self.clock()
        )
        for progress in event.prefilled:
            if (generation := self.requests.generation(progress.request_id)) is not None:
                generation.prefilled(progress)
        for request_id, token in event.tokens:
            if (generation := self.requests.generation(request_id)) is None:
                continue
            generation.token(token)
            if token.finish is not None:
                self.requests.let_go(request_id, None)

    def _note_sample(self, sample: AllocatorSample) -> None:
        self.latest_sample = sample
        for reply in self.samples:
            reply.give(sample)
        self.samples.clear()

    def _note_load(self, event: LoadProgress | LoadFinished | LoadFailed) -> None:
        ticket = self.loads.get(event.load_id)
        if ticket is None:
            return
        match event:
            case LoadProgress(_, loaded, total):
                ticket.loaded_bytes, ticket.total_bytes = loaded, total
                ticket.sized.give(total)
                return
            case LoadFinished(_, info):
                self.views[ticket.model_id] = EngineView()
                ticket.reply.give(info)
            case LoadFailed(_, error):
                ticket.reply.fail(error)
        del self.loads[event.load_id]
