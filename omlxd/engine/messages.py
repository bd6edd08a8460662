"""Messages between the event loop and the device thread: plain frozen data, no MLX types.

Commands go through the worker's inbox; events come back in one batch for each step.
"""

from dataclasses import dataclass
from queue import SimpleQueue

from omlxd.backend.plan import Prefilled
from omlxd.backend.protocol import BackendInfo
from omlxd.backend.sequence import NewToken, SequenceSpec
from omlxd.errors import OmlxdError
from omlxd.policy.ceiling import Limits
from omlxd.policy.readings import AllocatorSample


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts that are known only of a loaded model."""

    weights_bytes: int
    vocab_size: int
    """Width of the logits."""
    cache_kinds: tuple[str, ...]
    """Cache class of each layer, in order."""


# Commands


@dataclass(frozen=True, slots=True)
class Load:
    load_id: int
    model_id: str
    path: str


@dataclass(frozen=True, slots=True)
class CancelLoad:
    load_id: int


@dataclass(frozen=True, slots=True)
class Unload:
    model_id: str


@dataclass(frozen=True, slots=True)
class Submit:
    model_id: str
    sequence: SequenceSpec


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request with ``error``; None when it has no reader any more."""

    request_id: str
    error: OmlxdError | None = None


@dataclass(frozen=True, slots=True)
class SetLimits:
    limits: Limits


@dataclass(frozen=True, slots=True)
class ReclaimBufferCache:
    """Empty MLX's buffer cache: at the next step boundary, or once idle."""

    when_idle: bool


@dataclass(frozen=True, slots=True)
class TakeSample:
    """Sample the allocator now. While work runs, a sample comes with each step anyway."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End everything, and the thread."""


Command = (
    Load
    | CancelLoad
    | Unload
    | Submit
    | Cancel
    | SetLimits
    | ReclaimBufferCache
    | TakeSample
    | Stop
)


class Inbox:
    """The commands for the device thread. Filled on the event loop, emptied on that thread."""

    def __init__(self) -> None:
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self.coming = 0
        """How many requests will come soon. Set on the event loop."""

    def put(self, command: Command) -> None:
        self._commands.put(command)

    def get(self, *, block: bool = True, timeout: float | None = None) -> Command:
        """Raises queue.Empty."""
        return self._commands.get(block, timeout)

    def empty(self) -> bool:
        return self._commands.empty()


# Events


@dataclass(frozen=True, slots=True)
class BackendReady:
    info: BackendInfo


@dataclass(frozen=True, slots=True)
class LoadProgress:
    load_id: int
    loaded_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class LoadFinished:
    load_id: int
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The load ended without a model, and its memory is free again."""

    load_id: int
    error: OmlxdError


@dataclass(frozen=True, slots=True)
class Unloaded:
    model_id: str
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """One step of one model: prefill progress and all its new tokens."""

    model_id: str
    prefilled: tuple[Prefilled, ...]
    tokens: tuple[tuple[str, NewToken], ...]
    """(request id, token)"""
    running: int
    waiting: int
    cache_bytes: int
    """KV cache of the model's requests that prefill or decode."""


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A request ended without a last token: it failed, or was cancelled (error None)."""

    request_id: str
    error: OmlxdError | None


@dataclass(frozen=True, slots=True)
class BufferCacheReclaimed:
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class Sampled:
    sample: AllocatorSample


Event = (
    BackendReady
    | LoadProgress
    | LoadFinished
    | LoadFailed
    | Unloaded
    | Stepped
    | RequestEnded
    | BufferCacheReclaimed
    | Sampled
)
