"""What the guard may ask for: one frozen class each, and what came of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DropImageCache:
    """Forget decoded images; the cheapest thing to give up."""


@dataclass(frozen=True, slots=True)
class ReclaimBufferCache:
    """Every scheduler returns pooled bytes at its next step boundary, also under load."""


@dataclass(frozen=True, slots=True)
class ShrinkRamCache:
    """Drop least recently used cached prefixes, never a block of a request that is running,
    prefilling or queued; dirty ones go to the SSD tier first."""

    bytes: int


@dataclass(frozen=True, slots=True)
class ReturnFreePages:
    """The host's malloc gives its free pages back."""


@dataclass(frozen=True, slots=True)
class EvictModel:
    """Unload an idle model; refused when it has been leased since."""

    model_id: str
    bytes: int
    """Weights and KV that should come free."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Set running requests aside, their KV to the SSD tier, their place in the queue kept.

    The last thing before a request is aborted; no rule asks for it yet.
    """

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AbortRequests:
    """End the requests of one model, or of all (None), with ``MemoryPressureAborted``."""

    model_id: str | None


@dataclass(frozen=True, slots=True)
class MarkPendingUnload:
    """Take no new request for the model, try to unload it now, else as soon as it has drained.

    The doer gives the mark a deadline, so that it always clears.
    """

    model_id: str


@dataclass(frozen=True, slots=True)
class AbortLoads:
    """Flag these loads to stop between two pieces."""

    model_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IdleReclaim:
    """Every scheduler returns pooled bytes once it is idle; the flag stays set until then."""


@dataclass(frozen=True, slots=True)
class WalkStoreCap:
    """Every scheduler moves its cap of finished caches in storage one step (+1 or -1), from 1
    up to its maximum number of sequences."""

    step: int


Action = (
    DropImageCache
    | ReclaimBufferCache
    | ShrinkRamCache
    | ReturnFreePages
    | EvictModel
    | Suspend
    | AbortRequests
    | MarkPendingUnload
    | AbortLoads
    | IdleReclaim
    | WalkStoreCap
)


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """What became of one action of the last decision."""

    action: Action
    accepted: bool = True
    """False when nobody took it or its precondition was gone."""
    freed: int | None = None
    """Bytes it gave back, measured; None when it cannot say yet, as a reclaim of the pool and an
    abort never can: the device thread carries them out later."""
    in_flight: bool = False
    """Taken, but not done within one poll; its bytes count as being freed."""
