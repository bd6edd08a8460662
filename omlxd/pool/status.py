"""What ``/status`` says about one model: plain data, no paths."""

import math
from dataclasses import dataclass

from omlxd.engine.handle import EngineView
from omlxd.errors import OmlxdError
from omlxd.library.catalog import BrokenModel, ModelKind
from omlxd.model_settings.options import ModelSettings
from omlxd.pool.record import ModelRecord
from omlxd.pool.states import (
    Absent,
    Draining,
    Failed,
    Loading,
    Queued,
    Ready,
    State,
    Unloading,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a model cannot be used: a code, a text, and the seconds until the next try."""

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
        default: requests that name no model get it.
        detail: the reason of a drain or of a wait; in monitor mode, what an enforcing guard would
            have done about its load.
        position: place in the queue for memory, 1 is next; None when it does not wait.
        weights_bytes: of the loaded model, otherwise of the files.
        promised_bytes: promised to its load, and not allocated yet.
        measured_bytes: what it really took when last loaded.
        since_step: time since its last step on the device; None before the first. If it grows
            while requests run, the device hangs.
    """

    id: str
    state: str
    kind: ModelKind | None = None
    aliases: tuple[str, ...] = ()
    pinned: bool = False
    default: bool = False
    context_length: int | None = None
    weights_bytes: int | None = None
    measured_bytes: int | None = None
    cache_bytes: int | None = None
    promised_bytes: int = 0
    loaded_bytes: int | None = None
    total_bytes: int | None = None
    leases: int = 0
    waiting: int = 0
    idle_seconds: float | None = None
    since_step: float | None = None
    unload_in: float | None = None
    position: int | None = None
    detail: str | None = None
    problem: Problem | None = None


def state_name(state: State) -> str:
    return type(state).__name__.lower()


def broken_status(model: BrokenModel, settings: ModelSettings, *, default: bool) -> ModelStatus:
    return ModelStatus(
        id=model.id,
        state="broken",
        aliases=settings.aliases or (),
        pinned=bool(settings.pinned),
        default=default,
        problem=Problem("model_broken", model.reason, file=model.file),
    )


def model_status(
    record: ModelRecord,
    now: float,
    *,
    monitoring: bool,
    activity: EngineView,
    tokenizer_failure: tuple[OmlxdError, float] | None,
    idle_timeout: float | None,
) -> ModelStatus:
    """The status of ``record``. ``monitoring``: the guard only watches; ``tokenizer_failure``: an
    error and the seconds until the next try; ``idle_timeout``: for models without their own."""
    info = record.info
    loading = record.state if isinstance(record.state, Loading) else None
    used = record.last_used if info is not None and not record.busy else None
    stepped_at = None if info is None else activity.last_step_at
    idle_ends = record.idle_ends(idle_timeout)
    return ModelStatus(
        id=record.id,
        state=state_name(record.state),
        kind=record.model.kind,
        aliases=record.settings.aliases or (),
        pinned=record.pinned,
        context_length=record.settings.context_within(record.model.context_length),
        weights_bytes=info.weights_bytes if info else record.model.weights_bytes,
        cache_bytes=None if info is None else activity.cache_bytes,
        promised_bytes=record.unallocated,
        loaded_bytes=loading.loaded_bytes if loading else None,
        total_bytes=loading.total_bytes if loading else None,
        leases=len(record.leases),
        waiting=len(record.waiting),
        idle_seconds=None if used is None else max(0.0, now - used),
        since_step=None if stepped_at is None else max(0.0, now - stepped_at),
        unload_in=None if idle_ends == math.inf else max(0.0, idle_ends - now),
        detail=_detail(record, monitoring=monitoring),
        problem=_problem(record, tokenizer_failure, now),
    )


def _detail(record: ModelRecord, *, monitoring: bool) -> str | None:
    match state := record.state:
        case Queued():
            return state.reason
        case Draining() | Unloading():
            return state.reason.value
        case Loading(cancelling=True):
            return "being cancelled"
        case Loading() | Ready():
            return record.monitor_note if monitoring else None
        case Absent() | Failed():
            return None


def _problem(
    record: ModelRecord, tokenizer_failure: tuple[OmlxdError, float] | None, now: float
) -> Problem | None:
    if isinstance(state := record.state, Failed):
        return _of_failure(state.why, state.retry_at - now, state.attempts)
    return None if tokenizer_failure is None else _of_failure(*tokenizer_failure, attempts=1)


def _of_failure(why: OmlxdError, retry_in: float, attempts: int) -> Problem:
    file = why.details.get("file")
    return Problem(
        code=why.code,
        message=why.message,
        file=file if isinstance(file, str) else None,
        retry_in=max(0.0, retry_in),
        attempts=attempts,
    )
