"""What ``/status`` says about one model: plain data, no paths."""

from dataclasses import dataclass

from omlxd.pool.catalog import BrokenModel, ModelKind
from omlxd.pool.entry import (
    Absent,
    Draining,
    Failed,
    Loading,
    Queued,
    Ready,
    State,
    Unloading,
)
from omlxd.pool.record import ModelRecord


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a model cannot be used: a code, a text, and when it is tried again (pool's clock)."""

    code: str
    message: str
    file: str | None = None
    retry_in: float | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """Sizes in bytes, times in seconds before or after now.

    Attributes:
        state: absent, queued, loading, ready, draining, unloading, failed or broken.
        detail: the reason of a drain or of a wait.
        position: place in the line for memory, 1 is next; None when not in line.
        weights_bytes: as loaded, else from the files.
        measured_bytes: what it really took when last loaded.
    """

    id: str
    state: str
    kind: ModelKind | None = None
    aliases: tuple[str, ...] = ()
    pinned: bool = False
    context_length: int | None = None
    weights_bytes: int | None = None
    measured_bytes: int | None = None
    cache_bytes: int | None = None
    loaded_bytes: int | None = None
    total_bytes: int | None = None
    leases: int = 0
    waiting: int = 0
    idle_seconds: float | None = None
    unload_in: float | None = None
    position: int | None = None
    detail: str | None = None
    problem: Problem | None = None


def state_name(state: State) -> str:
    return type(state).__name__.lower()


def of_broken(model: BrokenModel) -> ModelStatus:
    problem = Problem("model_broken", model.reason, file=model.file)
    return ModelStatus(id=model.id, state="broken", problem=problem)


@dataclass(frozen=True, slots=True)
class Measures:
    """What a status needs beside the record."""

    now: float
    context_length: int | None
    cache_bytes: int | None
    measured_bytes: int | None
    unload_in: float | None
    position: int | None


def of_record(record: ModelRecord, measures: Measures) -> ModelStatus:
    facts = record.facts
    loading = record.state if isinstance(record.state, Loading) else None
    used = record.last_used if facts is not None and not record.busy else None
    return ModelStatus(
        id=record.id,
        state=state_name(record.state),
        kind=record.model.kind,
        aliases=record.settings.aliases or (),
        pinned=record.pinned,
        context_length=measures.context_length,
        weights_bytes=facts.weights_bytes if facts else record.model.weights_bytes,
        measured_bytes=measures.measured_bytes,
        cache_bytes=measures.cache_bytes,
        loaded_bytes=loading.loaded_bytes if loading else None,
        total_bytes=loading.total_bytes if loading else None,
        leases=len(record.leases),
        waiting=len(record.waiting),
        idle_seconds=None if used is None else max(0.0, measures.now - used),
        unload_in=measures.unload_in,
        position=measures.position,
        detail=_detail(record.state),
        problem=_problem(record.state, measures.now),
    )


def _detail(state: State) -> str | None:
    match state:
        case Queued():
            return state.reason
        case Draining() | Unloading():
            return state.reason.value
        case Loading(cancelling=True):
            return "being cancelled"
        case Absent() | Loading() | Ready() | Failed():
            return None


def _problem(state: State, now: float) -> Problem | None:
    if not isinstance(state, Failed):
        return None
    file = state.why.facts.get("file")
    return Problem(
        code=state.why.code,
        message=state.why.message,
        file=file if isinstance(file, str) else None,
        retry_in=max(0.0, state.retry_at - now),
        attempts=state.attempts,
    )
