"""One look at the machine, its decision, and how the tick goes on or ends."""

from dataclasses import dataclass, field, replace

from omlxd.policy.actions import (
    AbortLoads,
    AbortRequests,
    Action,
    ActionOutcome,
    EvictModel,
    MarkPendingUnload,
    WalkStoreCap,
)
from omlxd.policy.ceiling import (
    Ceilings,
    DynamicFilter,
    HotCache,
    Limits,
    compute_ceilings,
    renumber,
)
from omlxd.policy.memory_state import MemoryState
from omlxd.policy.pressure import Level, Pause, is_emergency, is_over, level_of, pause_of
from omlxd.policy.readings import AllocatorSample, MemoryReading, ModelView
from omlxd.policy.tiers import BURST, GuardPolicy
from omlxd.policy.usage import ReleaseWindow, Usage, measure_usage, recent_pressure


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All input of one decision."""

    now: float
    reading: MemoryReading
    """A later look of the same tick has new footprints, but may have the same host counters."""
    sample: AllocatorSample | None = None
    models: tuple[ModelView, ...] = ()
    hot_cache: HotCache | None = None
    """None when there is no RAM tier."""
    image_cache_bytes: int | None = None
    """Decoded images held; zero when there is no such cache."""
    outcomes: tuple[ActionOutcome, ...] = ()
    """The outcomes of the last actions of this tick. An action without an outcome counts as
    accepted, and its freed bytes are unknown."""


@dataclass(frozen=True, slots=True)
class TickState:
    """What this tick has already found and tried."""

    began: float
    """Time of its first look. The age of the host counters is taken at this time."""
    counted: bool
    """False for a tick too soon after the last one: the counters do not count it."""
    target: int | None
    """The soft mark of the tick's start, which relief aims at."""
    asked: tuple[Action, ...] = ()
    """Actions of the last decision."""
    tried: frozenset[tuple[type, str | None]] = frozenset()
    """(class, model) of every action of this tick; no action is repeated."""
    leaving: frozenset[str] = frozenset()
    """Models whose unload is in flight."""
    deferring: bool = False
    """The last decision asked for a reclaim of the buffer cache and for nothing destructive."""
    ending: tuple[str, str] | None = None
    """(rule, reason) of the rule that ended this tick; None while the tick goes on."""


@dataclass(frozen=True, slots=True)
class GuardState:
    """The state that one decision hands to the next."""

    level: Level = Level.OK
    pause: Pause | None = None
    """Why new requests wait."""
    polls_over: int = 0
    """Polls in a row that ended at or over the ceiling."""
    deferrals: int = 0
    """Deferring polls in this episode."""
    counted_at: float | None = None
    dynamic: DynamicFilter = field(default_factory=DynamicFilter)
    release: ReleaseWindow = field(default_factory=ReleaseWindow)
    limits: Limits = field(default_factory=Limits)
    tick: TickState | None = None
    """None between two ticks."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured snapshot, the input of the rules."""

    state: GuardState
    snapshot: Snapshot
    policy: GuardPolicy
    ceilings: Ceilings
    usage: Usage
    level: Level
    emergency: bool
    polls_over: int
    tick: TickState
    outcomes: tuple[ActionOutcome, ...]

    @property
    def pause(self) -> Pause | None:
        """Why new requests wait from now on; None if they do not wait."""
        pressure = recent_pressure(self.snapshot.reading, self.tick.began)
        was_paused = self.state.pause is not None
        return pause_of(was_paused, self.usage.bytes, self.ceilings, pressure)

    @property
    def excess(self) -> int:
        """Bytes above the target, without what is being unloaded; never below zero."""
        if self.usage.bytes is None or self.tick.target is None:
            return 0
        freeing = sum(model.bytes for model in self.snapshot.models if self.is_leaving(model))
        return max(0, self.usage.bytes - freeing - self.tick.target)

    def is_leaving(self, model: ModelView) -> bool:
        return model.unloading or model.id in self.tick.leaving

    @property
    def loaded(self) -> tuple[ModelView, ...]:
        """Models that are loaded and stay."""
        return tuple(m for m in self.snapshot.models if not m.loading and not self.is_leaving(m))

    @property
    def unpinned(self) -> tuple[ModelView, ...]:
        return tuple(model for model in self.loaded if not model.pinned)

    def tried(self, action: type, model_id: str | None = None) -> bool:
        return (action, model_id) in self.tick.tried

    def outcome(self, action: type) -> ActionOutcome | None:
        """The outcome of the first such action of the last decision."""
        return next((done for done in self.outcomes if isinstance(done.action, action)), None)


def observe(state: GuardState, snapshot: Snapshot, policy: GuardPolicy) -> Observation:
    """Measure once, so that every rule of this look reads the same numbers."""
    now = snapshot.now
    usage, release = measure_usage(snapshot.reading, snapshot.sample, state.release, now)
    began = now if state.tick is None else state.tick.began
    ceilings, dynamic = compute_ceilings(
        snapshot.reading, policy, state.dynamic, snapshot.hot_cache, began
    )
    counted = state.counted_at is None or now - state.counted_at >= BURST
    tick = state.tick or TickState(now, counted, ceilings.soft)
    outcomes = outcomes_of(tick.asked, snapshot.outcomes, policy.enforce)
    in_flight = {
        done.action.model_id
        for done in outcomes
        if isinstance(done.action, EvictModel) and done.accepted and done.in_flight
    }
    tick = replace(tick, leaving=tick.leaving | in_flight)
    over = is_over(usage.bytes, ceilings)
    polls_over = state.polls_over + int(tick.counted) if over else 0
    return Observation(
        state=replace(state, release=release, dynamic=dynamic),
        snapshot=snapshot,
        policy=policy,
        ceilings=ceilings,
        usage=usage,
        level=level_of(usage.bytes, ceilings),
        emergency=is_emergency(usage.bytes, ceilings, polls_over),
        polls_over=polls_over,
        tick=tick,
        outcomes=outcomes,
    )


def outcomes_of(
    asked: tuple[Action, ...], reported: tuple[ActionOutcome, ...], enforce: bool
) -> tuple[ActionOutcome, ...]:
    """The outcome of each action. In monitor mode each action counts as accepted."""
    known = {done.action: done for done in reported} if enforce else {}
    return tuple(
        known.get(action, ActionOutcome(action, in_flight=not enforce)) for action in asked
    )


def subject(action: Action) -> str | None:
    """The model an action is about."""
    match action:
        case EvictModel() | AbortRequests() | MarkPendingUnload():
            return action.model_id
        case AbortLoads():
            return ",".join(action.model_ids)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of one look.

    If ``look_again``, the tick goes on: apply ``actions``, take a new snapshot with their
    outcomes, and decide again from ``next_state``.
    """

    memory: MemoryState
    """What the guard publishes. In monitor mode the actions are shown and logged only."""
    actions: tuple[Action, ...]
    rule: str
    """Name of the rule that decided."""
    reason: str
    look_again: bool
    next_state: GuardState


@dataclass(frozen=True, slots=True)
class Step:
    """The answer of one rule."""

    reason: str
    actions: tuple[Action, ...] = ()
    last: bool = False
    """After this step the tick only measures again and ends."""
    deferring: bool = False
    keep_level: bool = False
    """The level and the pause stay as they were until the next look."""


def go_on(seen: Observation, rule: str, step: Step) -> Decision:
    """Ask for the actions of the step, then look again."""
    tried = {(type(action), subject(action)) for action in step.actions}
    tick = replace(
        seen.tick,
        asked=step.actions,
        tried=seen.tick.tried | tried,
        deferring=step.deferring,
        ending=(rule, step.reason) if step.last else None,
    )
    level = seen.state.level if step.keep_level else seen.level
    pause = seen.state.pause if step.keep_level else seen.pause
    state = replace(seen.state, level=level, pause=pause, tick=tick)
    return _decision(seen, state, step.actions, (rule, step.reason))


def conclude(seen: Observation, rule: str, reason: str, *, deferred: bool = False) -> Decision:
    """End the tick: keep the level, reset the counters of ended episodes, move the store caps by
    one step."""
    counted = seen.tick.counted
    deferrals = seen.state.deferrals + int(deferred and counted)
    state = replace(
        seen.state,
        level=seen.level,
        pause=seen.pause,
        polls_over=seen.polls_over,
        deferrals=0 if seen.level is Level.OK else deferrals,
        counted_at=seen.snapshot.now if counted else seen.state.counted_at,
        tick=None,
    )
    walk = WalkStoreCap(1 if seen.level is Level.OK else -1)
    return _decision(seen, state, (walk,) if counted else (), (rule, reason))


def _decision(
    seen: Observation, state: GuardState, actions: tuple[Action, ...], why: tuple[str, str]
) -> Decision:
    limits = seen.ceilings.limits(seen.policy, paused=state.pause is not None)
    state = replace(state, limits=renumber(state.limits, limits))
    memory = MemoryState(
        at=seen.snapshot.now,
        policy=seen.policy,
        reading=seen.snapshot.reading,
        usage=seen.usage,
        ceilings=seen.ceilings,
        limits=state.limits,
        level=state.level,
        emergency=seen.emergency,
        pause=state.pause,
    )
    return Decision(memory, actions, *why, look_again=state.tick is not None, next_state=state)
