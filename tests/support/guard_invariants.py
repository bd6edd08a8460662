"""The invariants that must hold after every tick of the guard, on any machine."""

from collections import Counter
from collections.abc import Iterable

from omlxd.policy.actions import (
    AbortLoads,
    AbortRequests,
    Action,
    EvictModel,
    MarkPendingUnload,
    ReclaimBufferCache,
    ReturnFreePages,
    WalkStoreCap,
)
from omlxd.policy.decision import Decision
from omlxd.policy.pressure import is_over
from omlxd.policy.readings import ModelView
from omlxd.policy.tiers import BURST
from tests.support.simulated_daemon import SimulatedDaemon

GIVING = (EvictModel, AbortRequests, MarkPendingUnload, AbortLoads)
"""Actions that take something away: a model, a request or a load."""
PATIENCE = 2
"""Polls over the ceiling that may pass before the guard takes something away."""


class Watch:
    """Attach it to a daemon before its start. ``broken`` lists the violations."""

    def __init__(self, daemon: SimulatedDaemon) -> None:
        self.daemon = daemon
        self.ticks = 0
        self.broken: list[str] = []
        self.rules: Counter[str] = Counter()
        self.notable_actions: list[tuple[float, Action]] = []
        """(time, action) of every accepted action that took something away."""
        self._seen = 0
        self._refused: set[str] = set()
        self._idle_polls_over = 0
        self._counted_at: float | None = None
        daemon.watchers.after_tick.append(self._after_tick)
        daemon.watchers.before_action.append(self._before_action)

    # Before each action

    def _before_action(self, action: Action, decision: Decision) -> None:
        views = {view.id: view for view in self.daemon.pool.views()}
        match action:
            case EvictModel(model_id=name):
                if name in views and views[name].pinned:
                    self._break(f"pinned '{name}' is to be unloaded")
            case MarkPendingUnload(model_id=name):
                if name in views and views[name].pinned:
                    self._break(f"pinned '{name}' is to be unloaded when it has drained")
                self._nothing_idle(views.values(), action)
            case AbortRequests(model_id=None):
                if not decision.memory.emergency or any(
                    not v.pinned for v in _staying(views.values())
                ):
                    self._break("everything is aborted outside of the last emergency")
            case AbortRequests(model_id=name):
                follows = EvictModel in {type(other) for other in decision.actions}
                if not follows:
                    self._nothing_idle(views.values(), action)
                    if name in views and views[name].pinned:
                        self._break(f"requests of pinned '{name}' are ended")
            case _:
                pass

    def _nothing_idle(self, views: Iterable[ModelView], action: Action) -> None:
        """Nothing is aborted while something idle could be unloaded."""
        for view in _staying(views):
            if not view.busy and not view.pinned and view.id not in self._refused_now():
                self._break(f"{action} while '{view.id}' is idle")

    def _refused_now(self) -> set[str]:
        """Models that this tick has asked to unload."""
        new = self.daemon.watchers.applied[self._seen :]
        return {action.model_id for action, _, _ in new if isinstance(action, EvictModel)}

    # After each tick

    def _after_tick(self) -> None:
        self.ticks += 1
        now = self.daemon.clock()
        news, self._seen = (
            self.daemon.watchers.applied[self._seen :],
            len(self.daemon.watchers.applied),
        )
        notable_actions = [
            a for a, _, outcome in news if isinstance(a, GIVING) and outcome.accepted
        ]
        self.notable_actions += [(now, action) for action in notable_actions]
        if self.daemon.enforcer.failures:
            self._break("a tick failed")
            return
        decision = self.daemon.decision
        self.rules[decision.rule] += 1
        self._check_over(decision, now, gave=bool(notable_actions))

    def _check_over(self, decision: Decision, now: float, *, gave: bool) -> None:
        leaving = sum(view.bytes for view in self.daemon.pool.views() if view.unloading)
        usage = decision.memory.usage.bytes
        # The unloads and aborts under way free enough, but a long step may delay them.
        over = usage is not None and is_over(usage - leaving, decision.memory.ceilings)
        counted = self._counted_at is None or now - self._counted_at >= BURST
        if counted:
            self._counted_at = now
        if not over or gave or not decision.memory.enforce or not self._something_left(decision):
            self._idle_polls_over = 0
        elif counted:
            self._idle_polls_over += 1
            if self._idle_polls_over > PATIENCE:
                self._break(f"{self._idle_polls_over} polls over the ceiling: {decision.rule}")

    def _something_left(self, decision: Decision) -> bool:
        """Something that the guard may take and has not asked for yet.

        While the allocator's numbers are old, only idle models: nothing is aborted on old numbers.
        """
        views = self.daemon.pool.views()
        if not decision.memory.usage.fresh:
            return any(not v.busy and not v.pinned for v in _staying(views))
        open_on = {
            g.model_id for g in self.daemon.engine.requests._generations.values() if not g.over
        }
        unpinned = [v for v in _staying(views) if not v.pinned]
        if any(not v.busy or v.id in open_on for v in unpinned):
            return True
        return not unpinned and any(v.loading and not v.load_aborting for v in views)

    def _break(self, what: str) -> None:
        self.broken.append(f"{self.daemon.clock():.1f}: {what}")

    # For the tests

    def since(self, at: float) -> list[Action]:
        return [action for when, action in self.notable_actions if when >= at]


def _staying(views: Iterable[ModelView]) -> list[ModelView]:
    return [v for v in views if not (v.loading or v.unloading)]


def harmless(actions: Iterable[Action]) -> bool:
    """Whether no action takes anything away."""
    return all(isinstance(a, ReclaimBufferCache | ReturnFreePages | WalkStoreCap) for a in actions)
