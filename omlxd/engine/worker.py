"""The device thread. Only this thread touches models, one small step at a time."""

import gc
from collections.abc import Callable, Sequence
from queue import Empty
from typing import assert_never

import structlog

from omlxd.backend.plan import EnteringSequence, StepPlan
from omlxd.backend.protocol import Backend
from omlxd.engine.loads import LoadQueue
from omlxd.engine.messages import (
    BackendReady,
    BufferCacheReclaimed,
    Cancel,
    CancelLoad,
    Command,
    Event,
    Inbox,
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
from omlxd.engine.model_engine import ModelEngine, model_engine
from omlxd.engine.options import EngineOptions
from omlxd.errors import (
    EngineDied,
    ModelUnloading,
    OmlxdError,
    ShuttingDown,
)
from omlxd.policy.batching import QUIET, BatchWindow, extended, seconds_left
from omlxd.policy.ceiling import Limits
from omlxd.policy.chunking import StepBudget, step_budget
from omlxd.policy.load_share import LoadPace, after_piece, after_steps, may_load, may_load_again
from omlxd.policy.readings import AllocatorSample

log = structlog.get_logger(__name__)

Post = Callable[[Sequence[Event]], None]


class Worker:
    """Takes commands from ``inbox``, posts events with ``post``, and blocks when it is idle.

    One iteration acts on all commands that have come, executes one step of each model with work,
    then loads one piece of a model if the load's share of the time allows. Commands take effect
    between steps and pieces, so no model is inside a step then.
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
        """The clocks are those of ``Engine``."""
        self._backend = backend
        self._options = options
        self._clock = clock
        self._sample_clock = sample_clock
        self._inbox = inbox
        self._post = post
        self._engines: dict[str, ModelEngine] = {}
        self._loads = LoadQueue(backend, self._emit)
        self._load_pace = LoadPace()
        self._window: BatchWindow | None = None
        self._limits = Limits()
        self._outbox: list[Event] = []
        self._reclaim_now = False
        self._reclaim_when_idle = False
        self._stopping = False

    def run(self) -> None:
        """Serve until Stop. Raises the errors that end the thread, such as EngineDied."""
        try:
            self._outbox.append(BackendReady(self._backend.start()))
            self._sample()
            self._flush()
            while self.iterate():
                pass
        finally:
            self._leave()

    def iterate(self) -> bool:
        """One iteration; False after Stop."""
        self._drain()
        self._wait_for_more()
        if self._stopping:
            return False
        self._remove_cancelled()
        self._reclaim_if_asked()
        working = self._working()
        if not (self._loads and may_load_again(self._load_pace)):
            for engine in working:
                self._step(engine)
                # After each model, so that a token does not wait for the steps of the other models.
                self._flush()
        if self._may_load(requests_run=bool(working)):
            self._load_piece()
            self._load_pace = after_piece(self._load_pace, self._clock())
        self._flush()
        return True

    @property
    def idle(self) -> bool:
        """The next iteration would wait for a command."""
        return not (self._busy or self._reclaim_now or self._reclaim_when_idle)

    @property
    def _busy(self) -> bool:
        return bool(self._loads) or bool(self._working())

    def _working(self) -> list[ModelEngine]:
        return [e for e in self._engines.values() if e.scheduler.has_work]

    def _drain(self) -> None:
        """Act on all commands in the inbox; wait for one when there is no other work."""
        wait = self.idle
        while not self._stopping:
            try:
                command = self._inbox.get(block=wait)
            except Empty:
                return
            wait = False
            self._act(command)

    def _wait_for_more(self) -> None:
        """After a request came to an idle device: wait for others that come with it."""
        while self._window is not None and not (self._stopping or self._loads):
            wait = seconds_left(self._window, self._clock(), coming=self._inbox.coming)
            # In short waits, because no command reports that an expected request was given up.
            wait = min(wait, QUIET)
            if wait <= 0 or not (self._act_within(wait) or self._inbox.coming):
                break
        self._window = None

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
        engine = self._engines.get(command.model_id)
        if engine is None:
            gone = ModelUnloading(f"Model '{command.model_id}' was unloaded meanwhile.")
            self._outbox.append(RequestEnded(command.sequence.id, gone))
            return
        if self._window is not None or not self._busy:
            seconds = engine.scheduler.prefill_seconds(len(command.sequence.prompt))
            self._window = extended(self._window, self._clock(), seconds)
        self._outbox.append(engine.scheduler.submit(EnteringSequence(command.sequence)))

    def _cancel(self, request_id: str, error: OmlxdError | None) -> None:
        for engine in self._engines.values():
            self._outbox += engine.scheduler.cancel(request_id, error)

    def _set_limits(self, limits: Limits) -> None:
        self._limits = limits
        for engine in self._engines.values():
            engine.scheduler.limits = limits

    # Steps

    def _step(self, engine: ModelEngine) -> None:
        self._execute(engine, engine.scheduler.schedule(self._budget()))
        self._sample()

    def _remove_cancelled(self) -> None:
        """Called before the next step, so that their memory is free for it."""
        for engine in self._engines.values():
            if engine.scheduler.leaving:
                self._execute(engine, engine.scheduler.schedule_removal())

    def _execute(self, engine: ModelEngine, plan: StepPlan) -> None:
        started = self._clock()
        result = engine.executor.execute(plan)
        self._outbox += engine.scheduler.update(result, self._clock() - started)
        self._reclaim_now |= result.lost is not None
        if not engine.scheduler.batched:
            engine.executor.drop_batch()

    def _budget(self) -> StepBudget:
        working = self._working()
        return step_budget(
            decode_stall=self._options.decode_stall,
            longest_step=self._options.longest_step,
            prefilling_models=sum(1 for e in working if e.scheduler.prefilling),
            decoding=any(e.scheduler.decoding for e in working),
        )

    # Models

    def _may_load(self, *, requests_run: bool) -> bool:
        if not (self._loads and requests_run):
            self._load_pace = LoadPace()
            return bool(self._loads)
        self._load_pace = after_steps(
            self._load_pace,
            self._clock(),
            share=self._options.load_share,
            most=self._options.decode_stall,
        )
        return may_load(self._load_pace)

    def _load_piece(self) -> None:
        loaded = self._loads.piece(self._engines)
        if loaded is not None:
            command, model = loaded
            engine = model_engine(command.model_id, model, self._options, self._limits)
            self._engines[command.model_id] = engine
            self._outbox.append(LoadFinished(command.load_id, engine.info))
        self._sample()

    def _unload(self, model_id: str) -> None:
        engine = self._engines.pop(model_id, None)
        if engine is None:
            self._outbox.append(Unloaded(model_id, 0))
            return
        before = self._backend.sample(self._sample_clock()).active
        gone = f"Model '{model_id}' was unloaded."
        self._outbox += engine.scheduler.end_all(ModelUnloading(gone))
        engine.executor.close()
        del engine
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
        # Not the append method of the list, because each flush starts a new list.
        self._outbox.append(event)

    def _flush(self) -> None:
        if self._outbox:
            events, self._outbox = self._outbox, []
            self._post(events)

    # The end

    def _leave(self) -> None:
        """Free everything, so that the thread ends without a model or a stream."""
        over: OmlxdError = EngineDied("The device thread has ended.")
        if self._stopping:
            over = ShuttingDown("The server is shutting down.")
        try:
            self._loads.end_all(over)
            for engine in self._engines.values():
                self._outbox += engine.scheduler.end_all(over)
                engine.executor.close()
            self._engines.clear()
            self._flush()
            gc.collect()
        finally:
            self._backend.stop()
