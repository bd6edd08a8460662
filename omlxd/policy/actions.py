"""What the guard may ask for: one frozen class for each action, and what became of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DropImageCache:
    """Drop the cache of decoded images. Nothing is cheaper to give up."""


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
    """Unload an idle model; refused when it has been leased since."""

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
    """End the requests of one model, or of all (None), with ``MemoryPressureAborted``."""

    model_id: str | None


@dataclass(frozen=True, slots=True)
class MarkPendingUnload:
    """Take no new request for the model, try to unload it now, else as soon as it has drained.

    Whoever carries this out gives the mark a deadline, so that it always ends.
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
    """What became of one action of the last decision."""

    action: Action
    accepted: bool = True
    """False when nobody took it, or what it needs is no longer so."""
    freed: int | None = None
    """Measured bytes that came free. None when they are not known yet. For a reclaim and an abort
    they never are, since the device thread carries these out later."""
    in_flight: bool = False
    """It was taken and needs longer than one poll; its bytes count as being freed."""
