"""What the pool knows about one model: its state, its leases and its waiting requests."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from omlxd.backend.sequence import SequenceSpec
from omlxd.engine.generation import Generation
from omlxd.engine.handle import Engine, LoadTicket
from omlxd.engine.messages import ModelInfo
from omlxd.errors import ModelUnloading, OmlxdError
from omlxd.library.catalog import CatalogModel
from omlxd.model_settings.options import ModelSettings
from omlxd.policy.eviction import Eviction
from omlxd.policy.readings import ModelView
from omlxd.pool import states
from omlxd.pool.failures import waited_too_long
from omlxd.pool.states import Absent, Draining, Failed, Loading, Ready, State, Unloading

log = structlog.get_logger(__name__)

Submit = Callable[[str, SequenceSpec], Generation]


class Lease:
    """The right to use a loaded model; it stays loaded until the lease is given back."""

    def __init__(self, model_id: str, request_id: str, info: ModelInfo, submit: Submit) -> None:
        self.model_id = model_id
        self.request_id = request_id
        self.info = info
        self._submit = submit
        self._generations: list[Generation] = []
        self._over = False

    def submit(self, sequence: SequenceSpec) -> Generation:
        """Raises QueueFull, and ModelUnloading when the pool has ended the lease."""
        if self._over:
            raise ModelUnloading(f"Model '{self.model_id}' was unloaded meanwhile.")
        generation = self._submit(self.model_id, sequence)
        self._generations.append(generation)
        return generation

    @property
    def open_requests(self) -> int:
        """Requests that still run. Ended requests may still have unread tokens."""
        return sum(not generation.over for generation in self._generations)

    def end(self) -> None:
        """Cancel its requests: no client reads their tokens any more."""
        self._over = True
        for generation in self._generations:
            generation.cancel()
        self._generations.clear()


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """A request that waits for a lease. ``number`` counts the requests as they arrive."""

    number: int
    request_id: str
    since: float
    deadline: float
    granted: asyncio.Future[Lease]
    made_for: str | None = None
    """Fingerprint of the files that its tokens were made with; None: it has no tokens yet."""

    def fail(self, error: OmlxdError) -> None:
        """No effect when its client has left already."""
        if not self.granted.done():
            self.granted.set_exception(error)


@dataclass(slots=True, eq=False)
class ModelRecord:
    """Owned by the pool and changed on the loop only. Only steps of ``states`` change ``state``."""

    model: CatalogModel
    settings: ModelSettings
    last_used: float
    idle_since: float
    """By a clock that stops while the machine sleeps."""
    state: State = field(default_factory=Absent)
    ready_at: float = 0.0
    failures: int = 0
    load_aborted: OmlxdError | None = None
    """The error of the load in progress, after the guard has stopped it."""
    stopped_at: float = -math.inf
    """When the guard last stopped its load."""
    monitor_note: str | None = None
    """In monitor mode: what an enforcing guard would have done about its load."""
    evicted_for: bool = False
    """Other models were unloaded to make room for it. Readings may still show their memory."""
    makes_room_for: Waiter | None = None
    """The request for which it is asked to make room."""
    eviction: Eviction | None = None
    """The report that it was asked to make room, kept until the outcome is reported."""
    promised: int = 0
    """Bytes that its load and first prefill may take; ``allocated`` of them are taken already."""
    allocated: int = 0
    preload: bool = False
    tokenizer_read: str | None = None
    """Fingerprint of the files whose tokenizer was read before a preload."""
    ticket: LoadTicket | None = None
    leases: set[Lease] = field(default_factory=set)
    waiting: deque[Waiter] = field(default_factory=deque)
    unloaded: list[asyncio.Future[int]] = field(default_factory=list)
    replacement: CatalogModel | None = None
    """The model on disk now, if its files are not the loaded ones."""
    gone: bool = False
    """No longer on disk."""

    @property
    def id(self) -> str:
        return self.model.id

    @property
    def newest(self) -> CatalogModel:
        """The model as it is on disk, which new requests will get."""
        return self.replacement or self.model

    @property
    def pinned(self) -> bool:
        return bool(self.settings.pinned)

    @property
    def busy(self) -> bool:
        return bool(self.leases or self.waiting)

    @property
    def wanted(self) -> bool:
        return bool(self.waiting) or self.preload

    @property
    def info(self) -> ModelInfo | None:
        """Known while the model is in memory."""
        return self.state.info if isinstance(self.state, Ready | Draining | Unloading) else None

    @property
    def has_room(self) -> bool:
        most = self.settings.max_concurrent_requests
        return most is None or len(self.leases) < most

    def idle_ends(self, timeout: float | None) -> float:
        """When it is unloaded because it is idle; infinite for never.

        ``timeout`` applies if the model has no idle timeout of its own; None: never.
        """
        own = self.settings.idle_timeout
        limit = timeout if own is None else own
        if limit is None or self.pinned or self.busy or not isinstance(self.state, Ready):
            return math.inf
        return self.idle_since + limit

    def take_replacement(self) -> None:
        """Replace it by the model on disk. Call this when nothing of it is in memory."""
        if self.replacement is None:
            return
        self.model, self.replacement = self.replacement, None
        self.failures = 0
        if isinstance(self.state, Failed):
            self.state = states.reset(self.state)

    # Promised memory. Allocated bytes are not counted here, because the readings show them.

    @property
    def unallocated(self) -> int:
        """Bytes promised to it and not allocated yet. They must not be promised to other models."""
        return max(0, self.promised - self.allocated)

    def reserve(self, size: int) -> None:
        """Promise it ``size`` bytes; this replaces earlier promises."""
        self.promised, self.allocated = size, 0

    def release(self) -> None:
        self.promised = self.allocated = 0

    # Requests. The caller must take the steps that become possible.

    def grant(self, submit: Submit, now: float) -> None:
        """Give leases, first come first served, to as many requests as the model may serve."""
        info = self.info
        while info is not None and self.waiting and self.has_room:
            waiter = self.waiting.popleft()
            if waiter.granted.done():
                continue
            lease = Lease(self.id, waiter.request_id, info, submit)
            self.leases.add(lease)
            self.last_used = self.idle_since = now
            waiter.granted.set_result(lease)

    def leave(self, waiter: Waiter, now: float) -> None:
        """The request is over, whether it waits or holds its lease."""
        granted = waiter.granted
        if granted.done() and not granted.cancelled() and granted.exception() is None:
            lease = granted.result()
            lease.end()
            if lease in self.leases:
                self.leases.discard(lease)
                self.last_used = self.idle_since = now
            return
        granted.cancel()
        if waiter in self.waiting:
            self.waiting.remove(waiter)

    def end_leases(self, engine: Engine) -> None:
        """End the leases at a deadline: requests end at the next step, before any unload."""
        engine.abort(self.id, ModelUnloading(f"Model '{self.id}' was unloaded."))
        log.warning("leases_ended", model=self.id, leases=len(self.leases))
        for lease in self.leases:
            lease.end()
        self.leases.clear()

    def expire(self, now: float, shortage: Callable[["ModelRecord"], Mapping[str, Any]]) -> bool:
        """Fail the requests whose deadline has passed; True if there were any.

        Deadlines limit the wait in the queue; they do not stop a load that has begun. ``shortage``
        gives the numbers for a load that waits for memory.
        """
        if isinstance(self.state, Loading):
            return False
        late = [waiter for waiter in self.waiting if waiter.deadline <= now]
        for waiter in late:
            self.waiting.remove(waiter)
            waited = now - waiter.since
            waiter.fail(waited_too_long(self.id, self.state, waited, lambda: shortage(self)))
        return bool(late)

    def fail_waiting(self, error: OmlxdError) -> None:
        """Each request gets a copy: an exception that is raised twice joins both tracebacks."""
        while self.waiting:
            self.waiting.popleft().fail(error.again())

    def fail_replaced(self) -> None:
        """Fail requests with tokens for the old files: the new model reads them differently."""
        for waiter in list(self.waiting):
            error = self.replaced_since(waiter.made_for)
            if error is not None:
                self.waiting.remove(waiter)
                waiter.fail(error)

    def replaced_since(self, made_for: str | None) -> OmlxdError | None:
        """The error if a request's tokens are for other files (``made_for``), otherwise None."""
        if made_for is None or made_for == self.newest.fingerprint:
            return None
        return ModelUnloading(
            f"Model '{self.id}' was replaced on disk meanwhile; send the request again.",
            retry_after=1.0,
        )

    def view(self, engine: Engine) -> ModelView | None:
        """The model as the policy sees it; None when it takes no memory.

        It is busy while a request has or wants a lease, and while the device thread still holds
        requests of it: the memory of ended requests is free only after that.
        """
        info, state, activity = self.info, self.state, engine.view(self.id)
        if info is None and not isinstance(state, Loading):
            return None
        requests = sum(lease.open_requests for lease in self.leases)
        return ModelView(
            id=self.id,
            weights_bytes=info.weights_bytes if info else self.model.weights_bytes,
            kv_bytes=activity.cache_bytes,
            busy=self.busy or activity.held > 0,
            requests=requests,
            pinned=self.pinned,
            last_used=self.last_used,
            loading=isinstance(state, Loading),
            load_aborting=isinstance(state, Loading) and state.cancelling,
            pending_unload=isinstance(state, Draining),
            unloading=isinstance(state, Unloading),
            ending=max(0, activity.held - requests),
        )


def views(records: Iterable[ModelRecord], engine: Engine) -> tuple[ModelView, ...]:
    """The models that are in memory or being loaded."""
    seen = (record.view(engine) for record in records)
    return tuple(view for view in seen if view is not None)
