"""What the event loop knows of the device thread's work, kept up to date from its events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import structlog

from omlxd.backend.protocol import BackendInfo
from omlxd.engine.messages import (
    BackendReady,
    BufferCacheReclaimed,
    Event,
    LoadFailed,
    LoadFinished,
    LoadProgress,
    RequestEnded,
    Sampled,
    Stepped,
    Unloaded,
)
from omlxd.engine.registry import RequestRegistry
from omlxd.engine.ticket import LoadTicket, Reply
from omlxd.errors import OmlxdError
from omlxd.policy.readings import AllocatorSample

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EngineView:
    """What one model holds: ``held`` requests now, the rest as of its latest step."""

    held: int = 0
    cache_bytes: int = 0
    last_step_at: float | None = None


@dataclass(slots=True)
class EngineState:
    """Open requests, loads and questions. Belongs to the event loop."""

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
        """Nothing more will come: everything open ends with ``error``."""
        self.requests.let_all_go(error)
        for ticket in self.loads.values():
            ticket.answer.fail(error.again())
        self.loads.clear()
        for answers in self.unloads.values():
            for answer in answers:
                answer.fail(error.again())
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
                for answer in self.unloads.pop(model_id, []):
                    answer.give(freed)
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
        for answer in self.samples:
            answer.give(sample)
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
                ticket.answer.give(info)
            case LoadFailed(_, error):
                ticket.answer.fail(error)
        del self.loads[event.load_id]
