"""What the pool knows about one model now: its state, who uses it and who waits for it."""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from omlxd.backend.sequence import SequenceSpec
from omlxd.engine.generation import Generation
from omlxd.engine.messages import ModelInfo
from omlxd.errors import ModelUnloading, OmlxdError
from omlxd.library.catalog import CatalogModel
from omlxd.model_settings.options import ModelSettings
from omlxd.policy.eviction import Eviction
from omlxd.pool.entry import (
    Absent,
    Draining,
    Event,
    Failed,
    GivenUp,
    Ready,
    State,
    Unloading,
    step,
)
from omlxd.pool.protocol import LoadTicket


class Lease:
    """The right to use a loaded model; it stays loaded until the lease is given back."""

    def __init__(
        self,
        model_id: str,
        request_id: str,
        info: ModelInfo,
        submit: Callable[[str, SequenceSpec], Generation],
    ) -> None:
        self.model_id = model_id
        self.request_id = request_id
        self.info = info
        self._submit = submit
        self._generations: list[Generation] = []
        self._over = False

    def submit(self, sequence: SequenceSpec) -> Generation:
        """Raises QueueFull, and ModelUnloading when the lease was ended from above."""
        if self._over:
            raise ModelUnloading(f"Model '{self.model_id}' was unloaded meanwhile.")
        generation = self._submit(self.model_id, sequence)
        self._generations.append(generation)
        return generation

    @property
    def open_requests(self) -> int:
        """Those that are not over; what came of the others may still be unread."""
        return sum(not generation.over for generation in self._generations)

    def end(self) -> None:
        """What its requests still generate nobody reads any more."""
        self._over = True
        for generation in self._generations:
            generation.cancel()
        self._generations.clear()


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """A request that waits for a lease. ``number`` is its place of arrival on this machine."""

    number: int
    request_id: str
    since: float
    deadline: float
    granted: asyncio.Future[Lease]
    made_for: str | None = None
    """Fingerprint of the files that its tokens were made with; None: it has none yet."""

    def fail(self, error: OmlxdError) -> None:
        """Nothing when its client has left already."""
        if not self.granted.done():
            self.granted.set_exception(error)


@dataclass(slots=True, eq=False)
class ModelRecord:
    """Owned by the pool; changed on the loop only, its state by ``happen`` only."""

    model: CatalogModel
    settings: ModelSettings
    last_used: float
    idle_since: float
    """Of the clock that leaves out the machine's sleep."""
    state: State = field(default_factory=Absent)
    ready_at: float = 0.0
    failures: int = 0
    load_aborted: OmlxdError | None = None
    """What the load in progress ends with, once the guard has asked for its end."""
    stopped_at: float = -math.inf
    """When the guard last stopped its load."""
    watched: str | None = None
    """What a guard that acts would have done about its load, where it only watched."""
    evicted_for: bool = False
    """Others were unloaded to make room for it, so readings may still show them."""
    makes_room_for: Waiter | None = None
    """The request that a drain to make room is for."""
    eviction: Eviction | None = None
    """What was reported when it was asked to make room, until its outcome is reported as well."""
    preload: bool = False
    tokenizer_read: str | None = None
    """Fingerprint of the files whose tokenizer was read before a preload."""
    ticket: LoadTicket | None = None
    leases: set[Lease] = field(default_factory=set)
    waiting: deque[Waiter] = field(default_factory=deque)
    unloaded: list[asyncio.Future[int]] = field(default_factory=list)
    replacement: CatalogModel | None = None
    """What is on disk now, where that is not what is loaded."""
    gone: bool = False
    """No longer on disk."""

    @property
    def id(self) -> str:
        return self.model.id

    @property
    def newest(self) -> CatalogModel:
        """As it is on disk: what those who come now will get."""
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
        """When it is to leave memory because nobody uses it; infinite where that is never.

        ``timeout`` holds where it has none of its own; None: none.
        """
        own = self.settings.idle_timeout
        limit = timeout if own is None else own
        if limit is None or self.pinned or self.busy or not isinstance(self.state, Ready):
            return math.inf
        return self.idle_since + limit

    def happen(self, event: Event) -> None:
        """Raises IllegalStep, and changes nothing then."""
        self.state = step(self.state, event)

    def follow_disk(self) -> None:
        """Nothing of the model is in memory: the moment to take the new one."""
        if self.replacement is None:
            return
        self.model, self.replacement = self.replacement, None
        self.failures = 0
        if isinstance(self.state, Failed):
            self.happen(GivenUp())
