"""What one look came to, and how a tick goes on or ends with it."""

from dataclasses import dataclass, replace

from omlxd.policy.actions import Action, WalkStoreCap
from omlxd.policy.ceiling import Ceilings, Limits, renumber
from omlxd.policy.observation import GuardState, Observation, subject
from omlxd.policy.pressure import Level, Pause
from omlxd.policy.usage import Usage


@dataclass(frozen=True, slots=True)
class Decision:
    """What one look came to.

    While ``look_again``, the tick goes on: apply ``actions``, take a new snapshot with their
    outcomes, and decide again from ``next_state``.
    """

    level: Level
    emergency: bool
    pause: Pause | None
    """Why new requests wait (in monitor mode: would wait); None: they do not."""
    usage: Usage
    ceilings: Ceilings
    limits: Limits
    actions: tuple[Action, ...]
    apply: bool
    """False in monitor mode: shown and logged, not carried out."""
    rule: str
    """Name of the function below that decided."""
    reason: str
    look_again: bool
    next_state: GuardState
    reading_at: float
    """Time of the reading that this decision rests on."""

    @property
    def paused(self) -> bool:
        return self.pause is not None

    @property
    def ceiling(self) -> int | None:
        return self.ceilings.ceiling


@dataclass(frozen=True, slots=True)
class Step:
    """The answer of one rule."""

    reason: str
    actions: tuple[Action, ...] = ()
    last: bool = False
    """Nothing more in this tick than to measure again and settle."""
    deferring: bool = False
    keep_level: bool = False
    """Taken before the level is settled, so nothing is paused yet."""


def go_on(seen: Observation, rule: str, step: Step) -> Decision:
    """The tick goes on after these actions."""
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
    """The end of the tick: the level settles, counters that ended are reset, caps walk."""
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
    return Decision(
        level=state.level,
        emergency=seen.emergency,
        pause=state.pause,
        usage=seen.usage,
        ceilings=seen.ceilings,
        limits=state.limits,
        actions=actions,
        apply=seen.policy.enforce,
        rule=why[0],
        reason=why[1],
        look_again=state.tick is not None,
        next_state=state,
        reading_at=seen.snapshot.reading.taken_at,
    )
