"""The states of a model and the legal steps between them: pure functions of frozen data.

Absent -> Queued -> Loading -> Ready -> Draining -> Unloading -> Absent
             |         |                  (Draining -> Ready: it stays after all)
             |         |-> Failed -> Queued
             |         \\-> Absent (no request waits any more)
             \\-> Absent, Failed
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

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
    """Waiting for memory since ``since``; ``reason`` says why."""

    since: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Loading:
    """Bytes are ``None`` before the device thread has begun."""

    since: float
    loaded_bytes: int | None = None
    total_bytes: int | None = None
    cancelling: bool = False
    """No request waits any more, or the guard stops it: the load ends at its next piece."""


@dataclass(frozen=True, slots=True)
class Ready:
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class Draining:
    """Takes no new requests; those that run are aborted at ``deadline``."""

    info: ModelInfo
    reason: DrainReason
    deadline: float


@dataclass(frozen=True, slots=True)
class Unloading:
    """The device thread drops it. Ends when readings show the freed memory, or after a limit."""

    info: ModelInfo
    reason: DrainReason


@dataclass(frozen=True, slots=True)
class Failed:
    """``attempts`` loads in a row failed. A request after ``retry_at`` tries again."""

    why: OmlxdError
    retry_at: float
    attempts: int


State = Absent | Queued | Loading | Ready | Draining | Unloading | Failed


class IllegalStep(Exception):
    """A bug in the pool: this step cannot happen in this state."""

    def __init__(self, state: State, step: str) -> None:
        super().__init__(f"{step} cannot happen to {type(state).__name__}")
        self.state = state
        self.step = step


S = TypeVar("S")


def _only(step: str, state: State, *legal: type[S]) -> S:
    """``state``, which must be a ``legal`` one for this step."""
    if not isinstance(state, legal):
        raise IllegalStep(state, step)
    return state


# Steps: each gives the next state, or raises IllegalStep


def enqueue(state: State, at: float) -> Queued:
    """A request or a preload wants the model."""
    _only("enqueue", state, Absent, Failed)
    return Queued(since=at)


def postpone(state: State, reason: str) -> Queued:
    """It still waits, for this ``reason``."""
    return replace(_only("postpone", state, Queued), reason=reason)


def start_load(state: State, at: float) -> Loading:
    _only("start_load", state, Queued)
    return Loading(since=at)


def progress(state: State, loaded_bytes: int, total_bytes: int) -> Loading:
    loading = _only("progress", state, Loading)
    return replace(loading, loaded_bytes=loaded_bytes, total_bytes=total_bytes)


def cancel_load(state: State) -> Loading:
    """End the load at its next piece."""
    return replace(_only("cancel_load", state, Loading), cancelling=True)


def finish_load(state: State, info: ModelInfo) -> Ready:
    _only("finish_load", state, Loading)
    return Ready(info)


def fail_load(state: State, why: OmlxdError, retry_at: float, attempts: int) -> Failed:
    _only("fail_load", state, Queued, Loading)
    return Failed(why, retry_at, attempts)


def reset(state: State) -> Absent:
    """It leaves the queue, its load was cancelled, or its failure is forgotten."""
    _only("reset", state, Queued, Loading, Failed)
    return Absent()


def drain(state: State, reason: DrainReason, deadline: float) -> Draining:
    """Ask it to leave memory. Of two deadlines the sooner one counts, with its reason."""
    if not isinstance(state, Ready | Draining):
        raise IllegalStep(state, "drain")
    if isinstance(state, Draining) and state.deadline <= deadline:
        return state
    return Draining(state.info, reason, deadline)


def keep(state: State) -> Ready:
    """It does not have to leave any more: the request that needed its memory is gone, or the
    model was pinned."""
    return Ready(_only("keep", state, Draining).info)


def start_unload(state: State) -> Unloading:
    """No lease is left."""
    draining = _only("start_unload", state, Draining)
    return Unloading(draining.info, draining.reason)


def finish_unload(state: State) -> Absent:
    _only("finish_unload", state, Unloading)
    return Absent()
