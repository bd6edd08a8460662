"""Carries the guard's actions out: each by the owner of what it is about."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, assert_never

from omlxd.enforcer import explain
from omlxd.errors import OmlxdError
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


class RequestOwner(Protocol):
    """The part of the engine that is asked here."""

    def abort(self, model_id: str | None, error: OmlxdError) -> int: ...

    def reclaim(self, *, when_idle: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class ActionExecutor:
    """Attributes:
    engine_up: the runtime runs, so that a reclaim is taken.
    models: the pool: unloads, pending unloads, loads; waits one poll at most. The error
        is for those who waited for a load that is aborted.
    release_free_memory: the host's; bytes given back, None where it cannot tell.
    """

    engine: RequestOwner
    engine_up: Callable[[], bool]
    models: Callable[[Action, OmlxdError], Awaitable[ActionOutcome]]
    release_free_memory: Callable[[], Awaitable[int | None]]

    async def apply(self, action: Action, decision: Decision) -> ActionOutcome:
        """What became of ``action``; one that nobody takes is refused, not an error."""
        match action:
            case ReclaimBufferCache() | IdleReclaim():
                return self._reclaim(action)
            case ReturnFreePages():
                return ActionOutcome(action, freed=await self.release_free_memory())
            case AbortRequests(model_id):
                ended = self.engine.abort(model_id, explain.aborted(decision))
                return ActionOutcome(action, accepted=ended > 0)
            case EvictModel() | MarkPendingUnload() | AbortLoads():
                return await self.models(action, explain.load_aborted(decision))
            case DropImageCache() | ShrinkRamCache() | WalkStoreCap() | Suspend():
                # There are no caches yet, so none of these has an owner.
                return ActionOutcome(action, accepted=False)
            case _:
                assert_never(action)

    def _reclaim(self, action: ReclaimBufferCache | IdleReclaim) -> ActionOutcome:
        if not self.engine_up():
            return ActionOutcome(action, accepted=False)
        self.engine.reclaim(when_idle=isinstance(action, IdleReclaim))
        return ActionOutcome(action)
