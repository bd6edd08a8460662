"""The actions of the guard, one frozen class for each, and their outcomes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DropImageCache:
    """Drop the cache of decoded images. This is the cheapest memory to give up."""


@dataclass(frozen=True, slots=True)
class ReclaimBufferCache:
    """Every scheduler clears the buffer cache at its next step boundary, also under load."""


@dataclass(frozen=True, slots=True)
class ShrinkRamCache:
    """Drop the least recently used cached prefixes. Blocks that were not written yet go to the SSD
    tier first. A block of a request that is running, prefilling or queued is never dropped."""

    bytes: int


@dataclass(frozen=True, slots=True)
class ReturnFreePages:
    """The host's malloc gives its free pages back."""


@dataclass(frozen=True, slots=True)
class EvictModel:
    """Unload an idle model; refused if it was leased in the meantime."""

    model_id: str
    bytes: int
    """Weights and KV that should come free."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Stop running requests for a while: their KV goes to the SSD tier, and they keep their place
    in the queue. It comes before a request is aborted. No rule asks for it yet.
    """

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AbortRequests:
    """End the requests of one model, or of all models (None), with ``MemoryPressureAborted``."""

    model_id: str | None


@dataclass(frozen=True, slots=True)
class MarkPendingUnload:
    """Take no new request for the model. Unload it now, otherwise as soon as it has drained.

    The executor gives the mark a deadline, so that it always ends.
    """

    model_id: str


@dataclass(frozen=True, slots=True)
class AbortLoads:
    """Flag these loads to stop between two pieces."""

    model_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IdleReclaim:
    """Every scheduler clears the buffer cache once it is idle; the flag stays set until then."""


@dataclass(frozen=True, slots=True)
class WalkStoreCap:
    """Every scheduler changes its limit of finished caches in storage by one step (+1 or -1). The
    limit stays between 1 and its maximum number of sequences."""

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
    """The outcome of one action of the last decision."""

    action: Action
    accepted: bool = True
    """False if it was not carried out, or if the state that it needs has changed."""
    freed: int | None = None
    """Measured bytes that came free; None if not known yet. They are never known for a reclaim or
    an abort, because the device thread carries these out later."""
    in_flight: bool = False
    """It was accepted and takes longer than one poll; its bytes count as being freed."""
