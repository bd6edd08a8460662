"""What the pool asks of its surroundings: the engine, a tokenizer loader, clocks, the guard."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from omlxd.backend.sequence import SequenceSpec
from omlxd.engine.generation import Generation
from omlxd.engine.messages import ModelFacts
from omlxd.errors import OmlxdError
from omlxd.text.protocol import Tokenizer


class LoadTicket(Protocol):
    """A load in progress. Bytes are ``None`` before the device thread knows them."""

    @property
    def loaded_bytes(self) -> int | None: ...

    @property
    def total_bytes(self) -> int | None: ...

    async def result(self) -> ModelFacts:
        """Raises ModelLoadFailed, ModelBroken, ModelLoadCancelled."""

    def cancel(self) -> None:
        """End the load at its next piece; ``result`` then raises, or was faster."""


class ModelActivity(Protocol):
    """One model's work on the device thread."""

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def cache_bytes(self) -> int: ...


class DeviceEngine(Protocol):
    def load(self, model_id: str, path: str) -> LoadTicket: ...

    async def unload(self, model_id: str) -> int:
        """Bytes that the allocator gave back."""

    def submit(self, model_id: str, sequence: SequenceSpec) -> Generation:
        """Raises QueueFull."""

    def abort(self, model_id: str | None, error: OmlxdError) -> int:
        """End all requests of a model (None: of all) with ``error``; how many."""

    def view(self, model_id: str) -> ModelActivity: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


def _nothing() -> None:
    """Nobody listens."""


def _unknown() -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class PoolPorts:
    """Everything the pool is given.

    Attributes:
        load_tokenizer: called in a thread with a model's folder.
        clock: seconds; may or may not count the time the machine sleeps.
        call_later: runs a function on the loop after some seconds; None: the loop's own.
        wake: called when something changed that the guard should look at.
        usage: bytes this process uses now, None where unknown; a cheap call.
        release_memory: gives freed heap pages back to the system; called in a thread.
    """

    engine: DeviceEngine
    load_tokenizer: Callable[[str], Tokenizer]
    clock: Callable[[], float]
    call_later: Callable[[float, Callable[[], None]], Timer] | None = None
    wake: Callable[[], None] = _nothing
    usage: Callable[[], int | None] = _unknown
    release_memory: Callable[[], object] | None = None
