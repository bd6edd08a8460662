"""What the pool asks of its surroundings: the engine, a tokenizer loader, clocks, the guard."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from omlxd.backend.sequence import SequenceSpec
from omlxd.engine.generation import Generation
from omlxd.engine.messages import ModelInfo
from omlxd.errors import OmlxdError
from omlxd.policy.eviction import Eviction
from omlxd.policy.memory_state import MemoryState
from omlxd.policy.readings import AllocatorSample
from omlxd.text.own_thread import OwnThread
from omlxd.text.protocol import Tokenizer
from omlxd.timing import Timer


class LoadTicket(Protocol):
    """A load in progress. Bytes are ``None`` before the device thread knows them."""

    @property
    def loaded_bytes(self) -> int | None: ...

    @property
    def total_bytes(self) -> int | None: ...

    async def result(self) -> ModelInfo:
        """Raises ModelLoadFailed, ModelBroken, ModelLoadCancelled."""

    async def size(self) -> int:
        """``total_bytes``, as soon as it is known: the backend may need more than the files hold.

        No answer when the load ends before.
        """

    def cancel(self) -> None:
        """End the load at its next piece; ``result`` then raises, or was faster."""


class ModelActivity(Protocol):
    """One model's work on the device thread."""

    @property
    def held(self) -> int:
        """Requests that the device thread holds, those that are over and not let go of included."""

    @property
    def cache_bytes(self) -> int: ...

    @property
    def last_step_at(self) -> float | None:
        """By the clock of the ports; None before its first."""


class DeviceEngine(Protocol):
    def load(self, model_id: str, path: str) -> LoadTicket: ...

    async def unload(self, model_id: str) -> int:
        """Bytes that the allocator gave back."""

    def submit(self, model_id: str, sequence: SequenceSpec) -> Generation:
        """Raises QueueFull."""

    def abort(self, model_id: str | None, error: OmlxdError) -> int:
        """End all requests of a model (None: of all) with ``error``; how many."""

    def reclaim(self, *, when_idle: bool) -> None:
        """Return the allocator's pooled bytes: at the next step boundary, or once idle."""

    @property
    def latest_sample(self) -> AllocatorSample | None:
        """After the latest step, piece or unload; None before the runtime is up."""

    async def sample(self) -> AllocatorSample:
        """The allocator's numbers as of the next step boundary."""

    def view(self, model_id: str) -> ModelActivity: ...


def _nothing() -> None:
    """Nobody listens."""


def _nobody(error: BaseException) -> None:
    """Nobody has to know; it was logged."""


def _ignore(eviction: Eviction) -> None:
    """Nobody keeps a record."""


def _unknown() -> int | None:
    return None


def _no_guard() -> MemoryState | None:
    return None


@dataclass(frozen=True, slots=True)
class PoolPorts:
    """Everything the pool is given.

    Attributes:
        load_tokenizer: called in a thread with a model's folder.
        own_thread: makes that thread.
        clock: seconds; the time that the machine sleeps should not count.
        call_later: runs a function on the loop after some seconds; None: the loop's own.
        wake: called when something changed that the guard should look at.
        usage: bytes this process uses now, None where unknown; a cheap call.
        release_memory: gives freed heap pages back to the system; called in a thread.
        memory: what the guard knows now; None: every load is admitted.
        state: folder of what the pool remembers; None: it remembers nothing.
        most_waiting: requests that may wait for a lease on one model; None: any number.
        on_eviction: called when a model is asked to leave to make room for a load, and again with
            the bytes that came free once it has left.
        died: told when a task of the pool ended by an exception, so that the daemon ends.
    """

    engine: DeviceEngine
    load_tokenizer: Callable[[str], Tokenizer]
    clock: Callable[[], float]
    call_later: Callable[[float, Callable[[], None]], Timer] | None = None
    wake: Callable[[], None] = _nothing
    usage: Callable[[], int | None] = _unknown
    release_memory: Callable[[], object] | None = None
    memory: Callable[[], MemoryState | None] = _no_guard
    state: Path | None = None
    on_eviction: Callable[[Eviction], None] = _ignore
    died: Callable[[BaseException], None] = _nobody
    most_waiting: int | None = None
    own_thread: Callable[[str, Callable[[], Any]], OwnThread[Any]] = OwnThread
