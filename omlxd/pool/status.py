"""What ``/status`` says about one model: plain data, no paths."""

import math
from dataclasses import dataclass, replace

from omlxd.errors import OmlxdError
from omlxd.library.catalog import BrokenModel, ModelKind
from omlxd.library.library import Library
from omlxd.model_settings.options import ModelSettings
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
from omlxd.pool.line import in_line
from omlxd.pool.measured_sizes import MeasuredSizes
from omlxd.pool.protocol import PoolPorts
from omlxd.pool.record import ModelRecord
from omlxd.pool.residency import Residency
from omlxd.pool.tokenizers import TokenizerCache


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
        default: requests that name no model get it.
        detail: the reason of a drain or of a wait; while the guard only watches, what one that
            acts would have done about its load.
        position: place in the line for memory, 1 is next; None when not in line.
        weights_bytes: as loaded, else from the files.
        promised_bytes: to its load, and not allocated yet.
        measured_bytes: what it really took when last loaded.
        since_step: its last step on the device; None before the first. One that grows while
            requests run tells of a device that hangs.
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


def of_broken(model: BrokenModel, settings: ModelSettings, *, default: bool) -> ModelStatus:
    return ModelStatus(
        id=model.id,
        state="broken",
        aliases=settings.aliases or (),
        pinned=bool(settings.pinned),
        default=default,
        problem=Problem("model_broken", model.reason, file=model.file),
    )


def statuses(
    residency: Residency,
    library: Library,
    sizes: MeasuredSizes,
    tokenizers: TokenizerCache,
    ports: PoolPorts,
) -> tuple[ModelStatus, ...]:
    """All models, the broken ones too, by id."""
    places = {record.id: n for n, record in enumerate(in_line(residency.records.values()), 1)}
    now, default = ports.clock(), library.default_id()
    memory = ports.memory()
    watching = memory is not None and not memory.enforce
    known = []
    for record in residency.records.values():
        residency.device.note_progress(record)
        status = _of_record(record, now, watching=watching)
        activity = None if record.info is None else ports.engine.view(record.id)
        stepped_at = None if activity is None else activity.last_step_at
        known.append(
            replace(
                status,
                default=record.id == default,
                position=places.get(record.id),
                promised_bytes=residency.device.promised_to(record.id),
                measured_bytes=sizes.measured(record.model),
                cache_bytes=None if activity is None else activity.cache_bytes,
                since_step=None if stepped_at is None else max(0.0, now - stepped_at),
                unload_in=_unload_in(record, residency.idle_timeout, now),
                problem=_problem(record, tokenizers, now),
            )
        )
    broken = [
        of_broken(model, library.settings.of(model.id), default=model.id == default)
        for model in library.catalog.broken.values()
        if model.id not in residency.records
    ]
    return tuple(sorted([*known, *broken], key=lambda status: status.id))


def _unload_in(record: ModelRecord, timeout: float | None, now: float) -> float | None:
    """Seconds until its idle timeout; None while it is in use or has none."""
    ends = record.idle_ends(timeout)
    return None if ends == math.inf else max(0.0, ends - now)


def _of_record(record: ModelRecord, now: float, *, watching: bool) -> ModelStatus:
    info = record.info
    loading = record.state if isinstance(record.state, Loading) else None
    used = record.last_used if info is not None and not record.busy else None
    return ModelStatus(
        id=record.id,
        state=state_name(record.state),
        kind=record.model.kind,
        aliases=record.settings.aliases or (),
        pinned=record.pinned,
        context_length=record.settings.context_within(record.model.context_length),
        weights_bytes=info.weights_bytes if info else record.model.weights_bytes,
        loaded_bytes=loading.loaded_bytes if loading else None,
        total_bytes=loading.total_bytes if loading else None,
        leases=len(record.leases),
        waiting=len(record.waiting),
        idle_seconds=None if used is None else max(0.0, now - used),
        detail=_detail(record, watching=watching),
    )


def _detail(record: ModelRecord, *, watching: bool) -> str | None:
    match state := record.state:
        case Queued():
            return state.reason
        case Draining() | Unloading():
            return state.reason.value
        case Loading(cancelling=True):
            return "being cancelled"
        case Loading() | Ready():
            return record.watched if watching else None
        case Absent() | Failed():
            return None


def _problem(record: ModelRecord, tokenizers: TokenizerCache, now: float) -> Problem | None:
    if isinstance(state := record.state, Failed):
        return _of_failure(state.why, state.retry_at - now, state.attempts)
    if (kept := tokenizers.failure(record.newest)) is not None:
        return _of_failure(*kept, attempts=1)
    return None


def _of_failure(why: OmlxdError, retry_in: float, attempts: int) -> Problem:
    file = why.details.get("file")
    return Problem(
        code=why.code,
        message=why.message,
        file=file if isinstance(file, str) else None,
        retry_in=max(0.0, retry_in),
        attempts=attempts,
    )
