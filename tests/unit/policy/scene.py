"""A toy machine and short ways to build what the policy reads."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from omlxd.policy.actions import (
    AbortLoads,
    AbortRequests,
    Action,
    ActionOutcome,
    DropImageCache,
    EvictModel,
    MarkPendingUnload,
    ReclaimBufferCache,
    ShrinkRamCache,
)
from omlxd.policy.ceiling import Ceilings, HotCache
from omlxd.policy.decision import Decision, GuardState, Snapshot
from omlxd.policy.readings import AllocatorSample, MemoryReading, ModelView
from omlxd.policy.relief import decide
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.units import GiB

CEILING = 100 * GiB
SOFT = 90 * GiB
HARD = 97 * GiB
TOTAL = 200 * GiB

POLICY = GuardPolicy(
    tier=Tier.CUSTOM, custom_ceiling_bytes=CEILING, soft_threshold=0.90, hard_threshold=0.97
)
"""A ceiling of 100 GiB, so that the marks are round numbers."""


def reading(now: float = 0.0, **numbers: Any) -> MemoryReading:
    known: dict[str, Any] = {"total": TOTAL, "footprint": 0, "free": 0, "inactive": 0}
    return MemoryReading(taken_at=now, **{**known, "external": 0, "active": 0, **numbers})


def model(name: str, gib: float = 10, **facts: Any) -> ModelView:
    """An idle, unpinned model unless ``facts`` say otherwise; busy ones have one request."""
    known: dict[str, Any] = {"busy": False, "pinned": False, "last_used": 0.0, "kv_bytes": 0}
    known |= facts
    known.setdefault("requests", 1 if known["busy"] else 0)
    return ModelView(id=name, weights_bytes=int(gib * GiB), **known)


def snapshot(
    usage: int, models: Sequence[ModelView] = (), *, now: float = 0.0, pool: int = 0, **more: Any
) -> Snapshot:
    """``usage`` bytes in use by footprint and allocator alike; no image cache."""
    more.setdefault("image_cache_bytes", 0)
    more.setdefault("reading", reading(now, footprint=usage))
    more.setdefault("sample", AllocatorSample(now, usage, pool, usage))
    return Snapshot(now=now, models=tuple(models), **more)


def ceilings(**facts: Any) -> Ceilings:
    known: dict[str, Any] = {
        "enabled": True,
        "tier": Tier.CUSTOM,
        "total": TOTAL,
        "reserve": 2 * GiB,
        "static": TOTAL - 2 * GiB,
        "dynamic": CEILING,
        "metal": None,
        "device_cap": None,
        "soft_fraction": 0.90,
        "hard_fraction": 0.97,
    }
    return Ceilings(**{**known, **facts})


@dataclass
class ToyMachine:
    """Carries out decisions at once and exactly; it decides nothing itself."""

    models: list[ModelView] = field(default_factory=list)
    base: int = 0
    pool: int = 0
    cached: int | None = None
    """Bytes of the RAM cache; None when there is none."""
    images: int = 0
    policy: GuardPolicy = POLICY
    now: float = 0.0
    state: GuardState = field(default_factory=GuardState)
    refuse: frozenset[str] = frozenset()
    """Models whose unload is refused: leased at the last moment."""
    slow: frozenset[str] = frozenset()
    """Models whose unload takes longer than a poll."""
    done: list[Action] = field(default_factory=list)

    @property
    def usage(self) -> int:
        loaded = sum(m.bytes for m in self.models)
        return self.base + self.pool + (self.cached or 0) + self.images + loaded

    def snapshot(self, outcomes: Sequence[ActionOutcome] = ()) -> Snapshot:
        cache = None if self.cached is None else HotCache(self.cached, 50 * GiB)
        return Snapshot(
            now=self.now,
            reading=reading(self.now, footprint=self.usage),
            sample=AllocatorSample(self.now, self.usage - self.pool, self.pool, self.usage),
            models=tuple(self.models),
            hot_cache=cache,
            image_cache_bytes=self.images,
            outcomes=tuple(outcomes),
        )

    def tick(self, after: float = 1.0) -> list[Decision]:
        """One whole tick, ``after`` seconds later; every decision of it."""
        self.now += after
        self.done = []
        decisions: list[Decision] = []
        outcomes: list[ActionOutcome] = []
        while True:
            decision = decide(self.state, self.snapshot(outcomes), self.policy)
            decisions.append(decision)
            self.state = decision.next_state
            outcomes = [
                self.apply(action) for action in decision.actions if decision.memory.enforce
            ]
            if not decision.look_again:
                return decisions
            assert len(decisions) <= 8 + 2 * len(self.models), "the tick does not end"

    def apply(self, action: Action) -> ActionOutcome:
        before = self.usage
        self.done.append(action)
        match action:
            case DropImageCache():
                self.images = 0
            case ReclaimBufferCache():
                self.pool = 0
            case ShrinkRamCache(bytes=size):
                return ActionOutcome(action, freed=self._shrink(size))
            case EvictModel():
                return self._unload(action)
            case AbortRequests(model_id=name):
                return self._abort(action)
            case MarkPendingUnload(model_id=name):
                self._change(name, pending_unload=True)
            case AbortLoads(model_ids=names):
                for name in names:
                    self._change(name, load_aborting=True)
            case _:
                pass
        return ActionOutcome(action, freed=before - self.usage)

    def _shrink(self, size: int) -> int:
        """Dropped memory only moves into the pool."""
        dropped = min(size, self.cached or 0)
        self.cached = (self.cached or 0) - dropped
        self.pool += dropped
        return dropped

    def _unload(self, action: EvictModel) -> ActionOutcome:
        name = action.model_id
        if name in self.refuse:
            return ActionOutcome(action, accepted=False)
        if name in self.slow:
            return ActionOutcome(action, in_flight=True)
        before = self.usage
        self.models = [m for m in self.models if m.id != name]
        return ActionOutcome(action, freed=before - self.usage)

    def _abort(self, action: AbortRequests) -> ActionOutcome:
        """A lease without a request stays: its reader is slow, or has not begun."""
        before, name = self.usage, action.model_id
        met = [m.id for m in self.models if name in (None, m.id) and m.requests]
        for each in met:
            self._change(each, requests=0, kv_bytes=0, busy=False)
        return ActionOutcome(action, accepted=bool(met), freed=before - self.usage)

    def _change(self, name: str | None, **facts: Any) -> None:
        self.models = [replace(m, **facts) if name in (None, m.id) else m for m in self.models]


def kinds(actions: Sequence[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]
