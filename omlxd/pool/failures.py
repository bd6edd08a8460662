"""What a waiting or refused request is told, and how long a failed load is left alone."""

from collections.abc import Callable, Mapping
from typing import Any

from omlxd.errors import (
    InsufficientMemory,
    MemoryPressure,
    MemoryPressureAborted,
    ModelBroken,
    ModelTooLarge,
    ModelUnloading,
    OmlxdError,
    QueueFull,
)
from omlxd.library.catalog import CatalogModel
from omlxd.memory_text import Mark, binding_name, in_words, mark_of, refusal_remedy, shortage
from omlxd.policy.admission import LoadNeed, RefusalKind, Refuse
from omlxd.policy.memory_state import MemoryState
from omlxd.policy.pressure import pause_of
from omlxd.policy.usage import recent_pressure
from omlxd.pool.entry import Draining, Failed, Queued, Unloading
from omlxd.pool.options import PoolOptions
from omlxd.pool.record import ModelRecord
from omlxd.printable import printable
from omlxd.units import format_bytes


def pause_after(failures: int, options: PoolOptions) -> float:
    """Seconds until the next try after ``failures`` (>= 1) in a row: doubling, bounded."""
    doublings = min(failures - 1, 32)
    return float(min(options.retry_longest, options.retry_first * 2**doublings))


def told_again(error: OmlxdError, retry_after: float | None) -> OmlxdError:
    """The failure of a load, for one more request. Broken files do not heal with time."""
    return error.again() if isinstance(error, ModelBroken) else error.again(retry_after=retry_after)


def without_paths(error: OmlxdError, model: CatalogModel) -> OmlxdError:
    """The same failure as clients read it: it names the model, and its files without a path."""
    folder = model.path
    message = printable(error.message.replace(f"{folder}/", "").replace(folder, "its folder"))
    if f"'{model.id}'" not in message:
        message = f"Model '{model.id}' cannot be loaded: {message}"
    details = {
        key: printable(value.removeprefix(f"{folder}/")) if isinstance(value, str) else value
        for key, value in error.details.items()
        if value != folder
    }
    return error.again(message=message, details=details)


def cooling_down(record: ModelRecord, now: float) -> OmlxdError | None:
    """Why a request for a model whose load failed a moment ago is refused; None: try again."""
    state = record.state
    if not isinstance(state, Failed) or now >= state.retry_at:
        return None
    if isinstance(state.why, ModelTooLarge | InsufficientMemory | MemoryPressureAborted):
        # Only memory was in the way, so nothing has to recover: it is judged anew.
        return None
    return told_again(state.why, retry_after=state.retry_at - now)


def memory_facts(need: LoadNeed, memory: MemoryState) -> dict[str, Any]:
    """What a load that waits for memory is up against; bytes, None where unknown."""
    return shortage(_mark(memory), memory.usage.bytes, need.bytes, memory.ceilings)


def _mark(memory: MemoryState) -> Mark:
    """Usage may have fallen since the guard looked; then the load has to fit, no more."""
    if not memory.paused:
        return Mark.HARD
    reading = memory.reading
    pressure = None if reading is None else recent_pressure(reading, reading.taken_at)
    pause = pause_of(True, memory.usage.bytes, memory.ceilings, pressure)
    return Mark.HARD if pause is None else mark_of(pause)


def _in_words(facts: Mapping[str, Any]) -> str:
    if facts.get("usage_bytes") is None or facts["ceiling_bytes"] is None:
        return ""
    return f" It needs {format_bytes(facts['estimate_bytes'])}. {in_words(facts)}"


def waited_too_long(
    record: ModelRecord, waited: float, shortage: Callable[[ModelRecord], Mapping[str, Any]]
) -> OmlxdError:
    """For a request at its deadline, by what it waited for; ``shortage`` gives ``memory_facts``."""
    name, facts = record.id, {"waited_seconds": round(waited, 1)}
    match record.state:
        case Queued(reason=reason):
            why, memory = reason or "other models are in the way", shortage(record)
            return MemoryPressure(
                f"Model '{name}' could not be loaded within {waited:.0f} s: {why}."
                f"{_in_words(memory)}",
                retry_after=10.0,
                **facts,
                **memory,
            )
        case Draining() | Unloading():
            return ModelUnloading(
                f"Model '{name}' is still being unloaded after {waited:.0f} s.",
                retry_after=5.0,
                **facts,
            )
        case _:
            return QueueFull(
                f"Model '{name}' was in use by as many requests as it may serve for "
                f"{waited:.0f} s.",
                retry_after=5.0,
                **facts,
            )


def replaced(record: ModelRecord, made_for: str | None) -> OmlxdError | None:
    """Why a request whose tokens were made with other files is refused; None: they are right."""
    if made_for is None or made_for == record.newest.fingerprint:
        return None
    return ModelUnloading(
        f"Model '{record.id}' was replaced on disk meanwhile; send the request again.",
        retry_after=1.0,
    )


def too_many_wait(record: ModelRecord, most: int | None) -> OmlxdError | None:
    """Why one more may not wait for a lease; None: it may."""
    if most is None or len(record.waiting) < most:
        return None
    return QueueFull(
        f"{most} requests wait for model '{record.id}', as many as may.",
        retry_after=5.0,
        limit=most,
    )


def refused(record: ModelRecord, plan: Refuse) -> OmlxdError:
    """For a load that cannot be: its sizes, the mark that tripped, the binding term, a remedy."""
    binding, helps = binding_name(plan.ceilings, plan.binding), refusal_remedy(plan)
    facts: dict[str, Any] = {**plan.details}
    facts |= {"mark": Mark.HARD.value, "binding": binding, "remedy": helps}
    bound = (
        f"the hard mark is {format_bytes(facts['limit_bytes'])} of a ceiling of "
        f"{format_bytes(facts['ceiling_bytes'])}, set by the {binding} term"
    )
    need = f"Model '{record.id}' needs {format_bytes(facts['estimate_bytes'])}"
    if plan.kind is RefusalKind.MODEL_TOO_LARGE:
        return ModelTooLarge(f"{need} and can never fit here: {bound}. {helps}", **facts)
    return InsufficientMemory(
        f"{need} and {format_bytes(facts['usage_bytes'])} are in use that cannot be freed: "
        f"{bound}. {helps}",
        retry_after=None,
        **facts,
    )
