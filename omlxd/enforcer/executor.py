"""Carries the guard's actions out, and writes the errors of the requests that they end."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import assert_never

from omlxd.engine.handle import Engine
from omlxd.errors import MemoryPressure, MemoryPressureAborted, OmlxdError
from omlxd.memory_text import in_words, pressure
from omlxd.policy.actions import (
    AbortLoads,
    AbortRequests,
    Action,
    ActionOutcome,
    DropImageCache,
    EvictModel,
    IdleReclaim,
    MarkPendingUnload,
    ReclaimBufferCache,
    ReturnFreePages,
    ShrinkRamCache,
    Suspend,
    WalkStoreCap,
)
from omlxd.policy.decision import Decision
from omlxd.policy.memory_state import MemoryState

RETRY_AFTER = 10.0
"""Seconds. The guard looks at admission every second under pressure; a client need not retry so
often."""


@dataclass(frozen=True, slots=True)
class ActionExecutor:
    """Gives each action to the part that carries it out.

    Attributes:
        engine_up: the runtime runs, so it accepts a reclaim.
        models: unloads, pending unloads and loads in the pool; waits one poll at most. The error
            goes to the requests that waited for an aborted load.
        release_free_memory: of the host; returns the bytes given back, None when unknown.
    """

    engine: Engine
    engine_up: Callable[[], bool]
    models: Callable[[Action, OmlxdError], Awaitable[ActionOutcome]]
    release_free_memory: Callable[[], Awaitable[int | None]]

    async def apply(self, action: Action, decision: Decision) -> ActionOutcome:
        """The outcome of ``action``. An action without an owner is refused, not an error."""
        match action:
            case ReclaimBufferCache() | IdleReclaim():
                if not self.engine_up():
                    return ActionOutcome(action, accepted=False)
                self.engine.reclaim(when_idle=isinstance(action, IdleReclaim))
                return ActionOutcome(action)
            case ReturnFreePages():
                return ActionOutcome(action, freed=await self.release_free_memory())
            case AbortRequests(model_id):
                ended = self.engine.abort(model_id, aborted(decision.memory))
                return ActionOutcome(action, accepted=ended > 0)
            case EvictModel() | MarkPendingUnload() | AbortLoads():
                return await self.models(action, load_aborted(decision.memory))
            case DropImageCache() | ShrinkRamCache() | WalkStoreCap() | Suspend():
                # There are no caches yet, so none of these has an owner.
                return ActionOutcome(action, accepted=False)
            case _:
                assert_never(action)


def aborted(memory: MemoryState) -> MemoryPressureAborted:
    """The error of a request that was ended while it ran."""
    details = pressure(memory)
    return MemoryPressureAborted(
        "The request was stopped to keep the machine from running out of memory. "
        f"{in_words(details)}",
        retry_after=RETRY_AFTER,
        **details,
    )


def load_aborted(memory: MemoryState) -> MemoryPressureAborted:
    """The error of a request whose model was being loaded."""
    details = pressure(memory)
    return MemoryPressureAborted(
        f"Loading the model was stopped: memory is short. {in_words(details)}",
        retry_after=RETRY_AFTER,
        **details,
    )


def waited(memory: MemoryState, seconds: float) -> MemoryPressure:
    """The error of a request that was still waiting for admission at its deadline."""
    details = pressure(memory)
    return MemoryPressure(
        f"The request waited {seconds:.0f} s for memory to come free. {in_words(details)}",
        retry_after=RETRY_AFTER,
        waited_seconds=round(seconds, 1),
        **details,
    )
