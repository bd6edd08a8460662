"""The states of a model and the legal steps between them: pure functions of frozen data.

Absent -> Queued -> Loading -> Ready -> Draining -> Unloading -> Absent
             |         |                  (Draining -> Ready: kept after all)
             |         |-> Failed -> Queued
             |         \\-> Absent (nobody waits any more)
             \\-> Absent, Failed
"""

from dataclasses import dataclass, replace
from enum import Enum

from omlxd.engine.messages import ModelInfo
from omlxd.errors import OmlxdError


class DrainReason(Enum):
    """Why a model is to leave memory."""

    REQUESTED = "requested"
    MAKE_ROOM = "another model waits for memory"
    PRESSURE = "memory pressure"
    IDLE = "idle timeout"
    VANISHED = "its files are gone or were replaced"
    STOPPING = "the daemon stops"


# States


@dataclass(frozen=True, slots=True)
class Absent:
    """On disk only."""


@dataclass(frozen=True, slots=True)
class Queued:
    """Waits for memory, in line, since ``since``."""

    since: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Loading:
    """Bytes are ``None`` before the device thread has begun."""

    since: float
    loaded_bytes: int | None = None
    total_bytes: int | None = None
    cancelling: bool = False
    """Nobody waits any more, or the guard said so: it ends at the next piece."""


@dataclass(frozen=True, slots=True)
class Ready:
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class Draining:
    """Serves what it has, takes nothing new; aborts what runs at ``deadline``."""

    info: ModelInfo
    reason: DrainReason
    deadline: float


@dataclass(frozen=True, slots=True)
class Unloading:
    """The device thread drops it; ends when the freed memory shows, or a limit passed."""

    info: ModelInfo
    reason: DrainReason


@dataclass(frozen=True, slots=True)
class Failed:
    """A load failed; ``attempts`` in a row. Tried again when asked for after ``retry_at``."""

    why: OmlxdError
    retry_at: float
    attempts: int


State = Absent | Queued | Loading | Ready | Draining | Unloading | Failed


# Events


@dataclass(frozen=True, slots=True)
class Wanted:
    at: float


@dataclass(frozen=True, slots=True)
class Postponed:
    """Still in line, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Started:
    at: float


@dataclass(frozen=True, slots=True)
class Progressed:
    loaded_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """End the load at its next piece."""


@dataclass(frozen=True, slots=True)
class Loaded:
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class LoadFailed:
    why: OmlxdError
    retry_at: float
    attempts: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Left the line, the load was cancelled, or the failure is forgotten; nothing is held."""


@dataclass(frozen=True, slots=True)
class DrainAsked:
    reason: DrainReason
    deadline: float


@dataclass(frozen=True, slots=True)
class Kept:
    """It was to leave for memory's sake and need not any more: the one it was to make room for went
    away, or it was pinned."""


@dataclass(frozen=True, slots=True)
class UnloadBegun:
    """No lease is left."""


@dataclass(frozen=True, slots=True)
class Unloaded:
    pass


Event = (
    Wanted
    | Postponed
    | Started
    | Progressed
    | CancelAsked
    | Loaded
    | LoadFailed
    | GivenUp
    | DrainAsked
    | Kept
    | UnloadBegun
    | Unloaded
)


class IllegalStep(Exception):
    """A fault of ours: this event cannot happen in this state."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{type(event).__name__} cannot happen to {type(state).__name__}")
        self.state = state
        self.event = event


def step(state: State, event: Event) -> State:
    """The state after ``event``. Raises IllegalStep."""
    match state:
        case Absent() | Failed():
            after = _from_rest(state, event)
        case Queued():
            after = _from_queued(state, event)
        case Loading():
            after = _from_loading(state, event)
        case Ready() | Draining():
            after = _from_resident(state, event)
        case Unloading():
            after = Absent() if isinstance(event, Unloaded) else None
    if after is None:
        raise IllegalStep(state, event)
    return after


def _from_rest(state: Absent | Failed, event: Event) -> State | None:
    match state, event:
        case _, Wanted():
            return Queued(since=event.at)
        case Failed(), GivenUp():
            return Absent()
        case _:
            return None


def _from_queued(state: Queued, event: Event) -> State | None:
    match event:
        case Postponed():
            return replace(state, reason=event.reason)
        case Started():
            return Loading(since=event.at)
        case LoadFailed():
            return Failed(event.why, event.retry_at, event.attempts)
        case GivenUp():
            return Absent()
        case _:
            return None


def _from_loading(state: Loading, event: Event) -> State | None:
    match event:
        case Progressed():
            return replace(state, loaded_bytes=event.loaded_bytes, total_bytes=event.total_bytes)
        case CancelAsked():
            return replace(state, cancelling=True)
        case Loaded():
            return Ready(event.info)
        case LoadFailed():
            return Failed(event.why, event.retry_at, event.attempts)
        case GivenUp():
            return Absent()
        case _:
            return None


def _from_resident(state: Ready | Draining, event: Event) -> State | None:
    match state, event:
        case Ready(), DrainAsked():
            return Draining(state.info, event.reason, event.deadline)
        case Draining(), DrainAsked():
            sooner = event.deadline < state.deadline
            return Draining(state.info, event.reason, event.deadline) if sooner else state
        case Draining(), Kept():
            return Ready(state.info)
        case Draining(), UnloadBegun():
            return Unloading(state.info, state.reason)
        case _:
            return None
