"""The device thread: the only one that touches models, one small step at a time."""

import gc
from collections.abc import Callable, Sequence
from queue import Empty
from typing import assert_never

import structlog

from omlxd.backend.protocol import Backend
from omlxd.engine.inbox import Inbox
from omlxd.engine.loads import LoadQueue
from omlxd.engine.messages import (
    BackendReady,
    BufferCacheReclaimed,
    Cancel,
    CancelLoad,
    Command,
    Event,
    Load,
    LoadFinished,
    ReclaimBufferCache,
    RequestEnded,
    Sampled,
    SetLimits,
    Stop,
    Submit,
    TakeSample,
    Unload,
    Unloaded,
)
from omlxd.engine.options import EngineOptions
from omlxd.engine.scheduler import Scheduler
from omlxd.errors import (
    EngineDied,
    ModelUnloading,
    OmlxdError,
    ShuttingDown,
)
from omlxd.policy.batching import QUIET, BatchWindow, hold_seconds, joined
from omlxd.policy.ceiling import Limits
from omlxd.policy.chunking import StepBudget, step_budget
from omlxd.policy.load_share import LoadPace, goes_on, may_load, spent, waited
from omlxd.policy.readings import AllocatorSample

log = structlog.get_logger(__name__)

Post = Callable[[Sequence[Event]], None]


class Worker:
    """Commands in through ``inbox``, events out through ``post``; idle means blocked on the inbox.

    A turn drains the inbox, steps each model with work once, then loads one piece, as far as the
    load's share of the time goes. Commands act between steps and pieces, so every one of them
    meets models at rest.
    """

    def __init__(
        self,
        backend: Backend,
        options: EngineOptions,
        clock: Callable[[], float],
        inbox: Inbox,
        post: Post,
        *,
        sample_clock: Callable[[], float],
    ) -> None:
        """Clocks as those of ``Engine``."""
        self._backend = backend
        self._options = options
        self._clock = clock
        self._sample_clock = sample_clock
        self._inbox = inbox
        self._post = post
        self._schedulers: dict[str, Scheduler] = {}
        self._loads = LoadQueue(backend, self._emit)
        self._load_pace = LoadPace()
        self._gathering: BatchWindow | None = None
        self._limits = Limits()
        self._outbox: list[Event] = []
        self._reclaim_now = False
        self._reclaim_when_idle = False
        self._stopping = False

    def run(self) -> None:
        """Serve until Stop. Raises what nothing below could answer for: the thread is over then."""
        try:
            self._outbox.append(BackendReady(self._backend.start()))
            self._sample()
            self._flush()
            while self.turn():
                pass
        finally:
            self._leave()

    def turn(self) -> bool:
        """One round; False once it has met Stop."""
        self._drain()
        self._gather()
        if self._stopping:
            return False
        self._reclaim_if_asked()
        working = [s for s in self._schedulers.values() if s.has_work]
        if not (self._loads and goes_on(self._load_pace)):
            for scheduler in working:
                self._step(scheduler)
                # Here and not once a turn, or a token would wait for the steps of other models.
                self._flush()
        if self._may_load(beside_others=bool(working)):
            self._load_piece()
            self._load_pace = spent(self._load_pace, self._clock())
        self._flush()
        return True

    @property
    def idle(self) -> bool:
        """The next turn would wait for a command."""
        return not (self._busy or self._reclaim_now or self._reclaim_when_idle)

    @property
    def _busy(self) -> bool:
        return bool(self._loads) or any(s.has_work for s in self._schedulers.values())

    def _drain(self) -> None:
        """Act on every command there is; wait for one when there is nothing else to do."""
        wait = self.idle
        while not self._stopping:
            try:
                command = self._inbox.get(block=wait)
            except Empty:
                return
            wait = False
            self._act(command)

    def _gather(self) -> None:
        """Wait a little for what comes together with a request that found the device idle."""
        while self._gathering is not None and not (self._stopping or self._loads):
            wait = hold_seconds(self._gathering, self._clock(), coming=self._inbox.coming)
            # In small pieces: nothing tells when what was coming comes no more.
            wait = min(wait, QUIET)
            if wait <= 0 or not (self._act_within(wait) or self._inbox.coming):
                break
        self._gathering = None

    def _act_within(self, seconds: float) -> bool:
        """Act on the next command if it comes in time."""
        try:
            command = self._inbox.get(timeout=seconds)
        except Empty:
            return False
        self._act(command)
        return True

    def _act(self, command: Command) -> None:
        match command:
            case Submit():
                self._submit(command)
            case Cancel(request_id, error):
                self._cancel(request_id, error)
            case Load():
                self._loads.add(command)
            case CancelLoad(load_id):
                self._loads.cancel(load_id)
            case Unload(model_id):
                self._unload(model_id)
            case SetLimits(limits):
                self._set_limits(limits)
            case ReclaimBufferCache(when_idle):
                self._reclaim_when_idle |= when_idle
                self._reclaim_now |= not when_idle
            case TakeSample():
                self._sample()
            case Stop():
                self._stopping = True
            case _:
                assert_never(command)

    def _submit(self, command: Submit) -> None:
        scheduler = self._schedulers.get(command.model_id)
        if scheduler is None:
            gone = ModelUnloading(f"Model '{command.model_id}' was unloaded meanwhile.")
            self._outbox.append(RequestEnded(command.sequence.id, gone))
            return
        if self._gathering is not None or not self._busy:
            seconds = scheduler.prefill_seconds(len(command.sequence.prompt))
            self._gathering = joined(self._gathering, self._clock(), seconds)
        scheduler.submit(command.sequence)
        self._outbox.append(scheduler.report())

    def _cancel(self, request_id: str, error: OmlxdError | None) -> None:
        for scheduler in self._schedulers.values():
            ended = scheduler.cancel(request_id, error)
            if ended:
                self._outbox += [*ended, scheduler.report()]
                return

    def _set_limits(self, limits: Limits) -> None:
        self._limits = limits
        for scheduler in self._schedulers.values():
            scheduler.limits = limits

    # Steps

    def _step(self, scheduler: Scheduler) -> None:
        outcome = scheduler.step(self._budget())
        self._outbox += [*outcome.ended, outcome.stepped]
        self._reclaim_now |= outcome.batch_lost
        self._sample()

    def _budget(self) -> StepBudget:
        working = [s for s in self._schedulers.values() if s.has_work]
        return step_budget(
            decode_stall=self._options.decode_stall,
            longest_step=self._options.longest_step,
            prefilling_models=sum(1 for s in working if s.prefilling),
            decoding=any(s.decoding for s in working),
        )

    # Models

    def _may_load(self, *, beside_others: bool) -> bool:
        if not (self._loads and beside_others):
            self._load_pace = LoadPace()
            return bool(self._loads)
        self._load_pace = waited(
            self._load_pace,
            self._clock(),
            share=self._options.load_share,
            most=self._options.decode_stall,
        )
        return may_load(self._load_pace)

    def _load_piece(self) -> None:
        loaded = self._loads.piece(self._schedulers)
        if loaded is not None:
            command, model = loaded
            scheduler = Scheduler(command.model_id, model, self._options, self._clock, self._limits)
            self._schedulers[command.model_id] = scheduler
            self._outbox.append(LoadFinished(command.load_id, scheduler.info))
        self._sample()

    def _unload(self, model_id: str) -> None:
        scheduler = self._schedulers.pop(model_id, None)
        if scheduler is None:
            self._outbox.append(Unloaded(model_id, 0))
            return
        before = self._backend.sample(self._sample_clock()).active
        gone = f"Model '{model_id}' was unloaded."
        self._outbox += scheduler.end_all(ModelUnloading(gone))
        scheduler.close()
        del scheduler
        self._backend.reclaim()
        after = self._sample().active
        self._outbox.append(Unloaded(model_id, max(before - after, 0)))

    # Memory

    def _reclaim_if_asked(self) -> None:
        if not (self._reclaim_now or (self._reclaim_when_idle and not self._busy)):
            return
        self._reclaim_now = False
        if not self._busy:
            self._reclaim_when_idle = False
        self._outbox.append(BufferCacheReclaimed(self._backend.reclaim()))
        self._sample()

    def _sample(self) -> AllocatorSample:
        sample = self._backend.sample(self._sample_clock())
        self._outbox.append(Sampled(sample))
        return sample

    def _emit(self, event: Event) -> None:
        # Not the list's own append: the list is another one after each flush.
        self._outbox.append(event)

    def _flush(self) -> None:
        if self._outbox:
            events, self._outbox = self._outbox, []
            self._post(events)

    # The end

    def _leave(self) -> None:
        """Give back everything, so that the thread ends without a model or a stream of its own."""
        over: OmlxdError = EngineDied("The device thread has ended.")
        if self._stopping:
            over = ShuttingDown("The server is shutting down.")
        try:
            self._loads.end_all(over)
            for scheduler in self._schedulers.values():
                self._outbox += scheduler.end_all(over)
                scheduler.close()
            self._schedulers.clear()
            self._flush()
            gc.collect()
        finally:
            self._backend.stop()
