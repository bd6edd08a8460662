"""The event loop's side of the device thread: submit, cancel, load, unload, sample."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence

import structlog

from omlxd.backend.protocol import Backend, BackendInfo
from omlxd.backend.sequence import SequenceSpec
from omlxd.engine.generation import (
    Generation,
    PromptProgress,
    RequestPhase,
    TokensArrived,
)
from omlxd.engine.messages import (
    Cancel,
    CancelLoad,
    Event,
    Inbox,
    Load,
    ReclaimBufferCache,
    SetLimits,
    Stop,
    Submit,
    TakeSample,
    Unload,
)
from omlxd.engine.options import EngineOptions
from omlxd.engine.registry import RequestRegistry
from omlxd.engine.state import EngineState, EngineView, LoadTicket, Reply
from omlxd.engine.worker import Worker
from omlxd.errors import EngineDied, OmlxdError, QueueFull, ShuttingDown
from omlxd.policy.ceiling import Limits
from omlxd.policy.readings import AllocatorSample

__all__ = [
    "Engine",
    "EngineView",
    "Generation",
    "LoadTicket",
    "PromptProgress",
    "RequestPhase",
    "TokensArrived",
]

log = structlog.get_logger(__name__)


class Engine:
    """Owns the device thread. Everything here is called on the event loop that started it."""

    def __init__(
        self,
        backend: Backend,
        options: EngineOptions,
        clock: Callable[[], float],
        *,
        on_death: Callable[[BaseException], None],
        sample_clock: Callable[[], float] | None = None,
        requests: RequestRegistry | None = None,
    ) -> None:
        """``clock``: seconds that do not pass while the machine sleeps; ``sample_clock``: the
        clock of the guard's readings, which it compares with the allocator's numbers; None:
        ``clock``."""
        self.requests = RequestRegistry(clock) if requests is None else requests
        self._backend = backend
        self._options = options
        self._clock = clock
        self._sample_clock = sample_clock or clock
        self._on_death = on_death
        self._inbox = Inbox()
        self._load_ids = itertools.count(1)
        self._thread: _DeviceThread | None = None
        self._over: OmlxdError | None = None
        """The error that new work is refused with; None while the engine takes work."""

    def start(self) -> None:
        """Start the thread ``mlx`` for the running loop; it imports the runtime first."""
        self._thread = _DeviceThread(
            EngineState(self._clock, self.requests, Reply()),
            asyncio.get_running_loop(),
            self._thread_left,
        )
        worker = Worker(
            self._backend,
            self._options,
            self._clock,
            self._inbox,
            self._thread.post,
            sample_clock=self._sample_clock,
        )
        self._thread.start(worker)

    async def ready(self) -> BackendInfo:
        """Wait for the runtime. Raises EngineDied when it cannot start."""
        return await self._state.ready.wait()

    @property
    def info(self) -> BackendInfo | None:
        """What the runtime reported at its start; None before that."""
        return None if self._thread is None else self._thread.state.info

    async def stop(self, limit: float) -> bool:
        """End every request with ShuttingDown, drop models and runtime, end the thread.

        False when the thread is still in a step after ``limit`` seconds.
        """
        if self._over is None:
            self._over = ShuttingDown("The server is shutting down.")
        self._inbox.put(Stop())
        if self._thread is None:
            return True
        try:
            await asyncio.wait_for(self._thread.left.wait(), limit)
        except TimeoutError:
            return False
        return True

    # Models

    def load(self, model_id: str, path: str) -> LoadTicket:
        """Start loading the folder ``path``; loads run one after another, piece by piece.

        Raises ShuttingDown or EngineDied; the ticket raises the errors of the model.
        """
        state = self._open_state()
        ticket = LoadTicket(
            next(self._load_ids), model_id, lambda i: self._inbox.put(CancelLoad(i))
        )
        state.loads[ticket.load_id] = ticket
        self._inbox.put(Load(ticket.load_id, model_id, path))
        return ticket

    async def unload(self, model_id: str) -> int:
        """Drop a model and end its requests with ModelUnloading; returns the freed bytes."""
        reply: Reply[int] = Reply()
        self._open_state().unloads.setdefault(model_id, []).append(reply)
        self._inbox.put(Unload(model_id))
        return await reply.wait()

    # Requests

    def submit(self, model_id: str, sequence: SequenceSpec) -> Generation:
        """Queue ``sequence`` on a loaded model; its id must be unique among the open ones.

        Raises QueueFull, ShuttingDown or EngineDied; the iteration raises all other errors.
        """
        self._open_state()
        room = self._options.max_concurrent + self._options.max_waiting
        if self.requests.held(model_id) >= room:
            raise QueueFull(
                f"Model '{model_id}' has {room} requests running and waiting, as many as it may.",
                limit=room,
            )
        generation = Generation(
            model_id, sequence, self._clock(), lambda i, error: self._inbox.put(Cancel(i, error))
        )
        self.requests.add(generation)
        self._inbox.put(Submit(model_id, sequence))
        return generation

    def expect(self, requests: int) -> None:
        """So many requests will come soon: an idle device waits a moment to begin with all."""
        self._inbox.coming = requests

    def abort(self, model_id: str | None, error: OmlxdError) -> int:
        """Cancel every running request (of one model) with ``error``; returns how many."""
        return self.requests.abort(model_id, error)

    def view(self, model_id: str) -> EngineView:
        return self._state.view(model_id)

    # Memory

    def reclaim(self, when_idle: bool) -> None:
        """Free the allocator's buffer cache: at the next step boundary, or once idle."""
        self._inbox.put(ReclaimBufferCache(when_idle))

    def set_limits(self, limits: Limits) -> None:
        self._inbox.put(SetLimits(limits))

    async def sample(self) -> AllocatorSample:
        """The allocator's numbers as of the next step boundary."""
        reply: Reply[AllocatorSample] = Reply()
        self._open_state().samples.append(reply)
        self._inbox.put(TakeSample())
        return await reply.wait()

    @property
    def latest_sample(self) -> AllocatorSample | None:
        """The allocator's numbers after the latest step; None before the runtime is up."""
        return self._state.latest_sample

    @property
    def reclaimed_bytes(self) -> int:
        """Bytes that reclaims of the buffer cache have freed since the start."""
        return self._state.reclaimed_bytes

    @property
    def _state(self) -> EngineState:
        if self._thread is None:
            raise RuntimeError("start() comes first")
        return self._thread.state

    def _open_state(self) -> EngineState:
        if self._over is not None:
            raise self._over.again()
        return self._state

    def _thread_left(self, death: BaseException | None) -> None:
        if death is not None:
            self._over = EngineDied(
                f"The device thread died ({type(death).__name__}); the server restarts."
            )
        self._state.close(self._over or ShuttingDown("The server is shutting down."))
        if death is not None:
            self._on_death(death)


class _DeviceThread:
    """The thread ``mlx``, and the way of its events to the loop."""

    def __init__(
        self,
        state: EngineState,
        loop: asyncio.AbstractEventLoop,
        on_left: Callable[[BaseException | None], None],
    ) -> None:
        self.state = state
        self.left = asyncio.Event()
        self._loop = loop
        self._on_left = on_left
        self._events_lost = False

    def start(self, worker: Worker) -> None:
        # A daemon thread, because a stop at its limit leaves a running step behind.
        threading.Thread(target=self._run, args=(worker,), name="mlx", daemon=True).start()

    def post(self, events: Sequence[Event]) -> None:
        """Called on the device thread."""
        self._call(lambda: self._take(events))

    def _take(self, events: Sequence[Event]) -> None:
        if self._events_lost:
            return
        try:
            self.state.apply(events)
        except Exception as error:  # the tasks that wait for a lost event would wait for ever
            log.critical("device_events_lost", exc_info=True)
            self._events_lost = True
            self._on_left(error)

    def _run(self, worker: Worker) -> None:
        death: BaseException | None = None
        try:
            worker.run()
        except BaseException as error:  # the loop must know of every end of the thread
            log.critical("device_thread_died", exc_info=True)
            death = error
        self._call(lambda: self._leave(death))

    def _leave(self, death: BaseException | None) -> None:
        self._on_left(death)
        self.left.set()

    def _call(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            log.warning("event_loop_closed_before_device_thread")
