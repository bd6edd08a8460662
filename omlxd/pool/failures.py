"""The errors of requests that wait or are refused, and the pause after a failed load."""

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
from omlxd.pool.options import PoolOptions
from omlxd.pool.states import Draining, Failed, Queued, State, Unloading
from omlxd.printable import printable
from omlxd.units import format_bytes


def pause_after(failures: int, options: PoolOptions) -> float:
    """Seconds until the next try after ``failures`` (>= 1) in a row; doubles up to a limit."""
    doublings = min(failures - 1, 32)
    return float(min(options.retry_longest, options.retry_first * 2**doublings))


def told_again(error: OmlxdError, retry_after: float | None) -> OmlxdError:
    """The error of a load, for one more request. Waiting does not repair broken files."""
    return error.again() if isinstance(error, ModelBroken) else error.again(retry_after=retry_after)


def without_paths(error: OmlxdError, model: CatalogModel) -> OmlxdError:
    """The same error for clients: it names the model, and names files without their paths."""
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


def cooling_down(state: State, now: float) -> OmlxdError | None:
    """The error for a request whose model failed to load a moment ago; None when it may retry."""
    if not isinstance(state, Failed) or now >= state.retry_at:
        return None
    if isinstance(state.why, ModelTooLarge | InsufficientMemory | MemoryPressureAborted):
        # Only memory was missing, so there is nothing to wait for: admission decides again.
        return None
    return told_again(state.why, retry_after=state.retry_at - now)


def memory_shortage(need: LoadNeed, memory: MemoryState) -> dict[str, Any]:
    """The numbers for a load that waits for memory; bytes, None where unknown."""
    return shortage(_mark(memory), memory.usage.bytes, need.bytes, memory.ceilings)


def _mark(memory: MemoryState) -> Mark:
    """The mark that stops the load: the hard mark if usage alone reaches none any more."""
    if not memory.paused:
        return Mark.HARD
    pressure = recent_pressure(memory.reading, memory.reading.taken_at)
    pause = pause_of(True, memory.usage.bytes, memory.ceilings, pressure)
    return Mark.HARD if pause is None else mark_of(pause)


def _in_words(facts: Mapping[str, Any]) -> str:
    if facts.get("usage_bytes") is None or facts["ceiling_bytes"] is None:
        return ""
    return f" It needs {format_bytes(facts['estimate_bytes'])}. {in_words(facts)}"


def waited_too_long(
    name: str, state: State, waited: float, shortage: Callable[[], Mapping[str, Any]]
) -> OmlxdError:
    """The error of a request at its deadline: what it waited for, and the ``shortage``."""
    details = {"waited_seconds": round(waited, 1)}
    match state:
        case Queued(reason=reason):
            why, memory = reason or "other models are in the way", shortage()
            return MemoryPressure(
                f"Model '{name}' could not be loaded within {waited:.0f} s: {why}."
                f"{_in_words(memory)}",
                retry_after=10.0,
                **details,
                **memory,
            )
        case Draining() | Unloading():
            return ModelUnloading(
                f"Model '{name}' is still being unloaded after {waited:.0f} s.",
                retry_after=5.0,
                **details,
            )
        case _:
            return QueueFull(
                f"Model '{name}' was in use by as many requests as it may serve for "
                f"{waited:.0f} s.",
                retry_after=5.0,
                **details,
            )


def too_many_wait(name: str, waiting: int, most: int | None) -> OmlxdError | None:
    """The error if one more request may not wait for a lease, otherwise None."""
    if most is None or waiting < most:
        return None
    return QueueFull(
        f"{most} requests wait for model '{name}', as many as may.",
        retry_after=5.0,
        limit=most,
    )


def refused(name: str, plan: Refuse) -> OmlxdError:
    """The error of a refused load: sizes, the mark it would pass, the binding term, the remedy."""
    binding, helps = binding_name(plan.ceilings, plan.binding), refusal_remedy(plan)
    details: dict[str, Any] = {**plan.details}
    details |= {"mark": Mark.HARD.value, "binding": binding, "remedy": helps}
    bound = (
        f"the hard mark is {format_bytes(details['limit_bytes'])} of a ceiling of "
        f"{format_bytes(details['ceiling_bytes'])}, set by the {binding} term"
    )
    need = f"Model '{name}' needs {format_bytes(details['estimate_bytes'])}"
    if plan.kind is RefusalKind.MODEL_TOO_LARGE:
        return ModelTooLarge(f"{need} and can never fit here: {bound}. {helps}", **details)
    return InsufficientMemory(
        f"{need} and {format_bytes(details['usage_bytes'])} are in use that cannot be freed: "
        f"{bound}. {helps}",
        retry_after=None,
        **details,
    )
