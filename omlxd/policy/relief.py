"""What to give up under memory pressure, and in which order.

``RULES``, read from top to bottom, is the whole order of priority.
"""

from collections.abc import Callable

from omlxd.policy.actions import (
    AbortLoads,
    AbortRequests,
    Action,
    DropImageCache,
    EvictModel,
    IdleReclaim,
    MarkPendingUnload,
    ReclaimBufferCache,
    ReturnFreePages,
    ShrinkRamCache,
)
from omlxd.policy.decision import (
    Decision,
    GuardState,
    Observation,
    Snapshot,
    Step,
    conclude,
    go_on,
    observe,
)
from omlxd.policy.eviction import WHY_FIRST, choose_to_end, choose_victims
from omlxd.policy.pressure import Level, Pause
from omlxd.policy.readings import ModelView
from omlxd.policy.tiers import BUFFER_CACHE_FLOOR, MAX_DEFERRALS, GuardPolicy


def decide(state: GuardState, snapshot: Snapshot, policy: GuardPolicy) -> Decision:
    """The first rule with an answer decides; the last rule always has one."""
    seen = observe(state, snapshot, policy)
    if not policy.enabled:
        return conclude(seen, "guard_off", "The guard is off.")
    if seen.tick.ending is not None and not _abort_found_nothing(seen):
        return conclude(seen, *seen.tick.ending)
    for rule in RULES:
        step = rule(seen)
        if step is None:
            continue
        if step.last and not step.actions:
            return conclude(seen, rule.__name__, step.reason, deferred=step.deferring)
        return go_on(seen, rule.__name__, step)
    raise AssertionError("the last rule always has an answer")


def drop_images(seen: Observation) -> Step | None:
    """Decoded images go first, before anything is paused or evicted."""
    if seen.level is Level.OK or seen.tried(DropImageCache):
        return None
    if seen.snapshot.image_cache_bytes == 0:
        return None
    reason = "Usage reached the soft mark: decoded images are dropped."
    return Step(reason, (DropImageCache(),), keep_level=True)


def end_deferred_tick(seen: Observation) -> Step | None:
    """If a scheduler has accepted the reclaim, the tick ends; otherwise the next rules follow."""
    taken = seen.outcome(ReclaimBufferCache)
    if not seen.tick.deferring or taken is None or not taken.accepted:
        return None
    return Step("The pool is being returned: nothing else yet.", last=True, deferring=True)


def defer_to_pool(seen: Observation) -> Step | None:
    """For a few polls a large buffer cache is freed before anything is given up.

    Only as the first step of a tick, because later steps free memory into the buffer cache too.
    """
    if seen.level is Level.OK or seen.emergency or seen.state.deferrals >= MAX_DEFERRALS:
        return None
    gave_up = any(kind is not DropImageCache for kind, _ in seen.tick.tried)
    if gave_up or not _buffer_cache_is_large(seen):
        return None
    return Step("The pool is large: it is returned first.", (ReclaimBufferCache(),), deferring=True)


def shrink_ram_cache(seen: Observation) -> Step | None:
    """At hard, cached prefixes that no request uses are dropped."""
    cache = seen.snapshot.hot_cache
    if seen.level is not Level.HARD or seen.excess == 0 or seen.tried(ShrinkRamCache):
        return None
    if cache is None or cache.used == 0:
        return None
    return Step("Hard: cached prefixes are dropped.", (ShrinkRamCache(seen.excess),))


def return_what_was_dropped(seen: Observation) -> Step | None:
    """malloc and the buffer cache still hold the dropped memory: both give it back."""
    shrunk = seen.outcome(ShrinkRamCache)
    dropped = shrunk is not None and bool(shrunk.freed)
    large = seen.level is Level.HARD and _buffer_cache_is_large(seen)
    actions: tuple[Action, ...] = (ReturnFreePages(),) if dropped else ()
    if (dropped or large) and not seen.tried(ReclaimBufferCache):
        actions += (ReclaimBufferCache(),)
    return Step("What was dropped is returned to the machine.", actions) if actions else None


def stop_when_relieved(seen: Observation) -> Step | None:
    """The tick ends at or below the soft mark; models that are being unloaded count as free."""
    if seen.level is not Level.OK and seen.excess > 0:
        return None
    freeing = seen.level is not Level.OK and any(map(seen.is_leaving, seen.snapshot.models))
    if freeing:
        return Step("An unload in flight frees enough.", last=True)
    return Step(_CALM[seen.pause], last=True)


def unload_drained(seen: Observation) -> Step | None:
    """A model that was asked to leave is unloaded when it has no request any more."""
    if not any(model.pending_unload for model in seen.snapshot.models):
        return None
    victim = _victim(seen)
    if victim is None or not victim.pending_unload:
        return None
    return _unload(victim, "has drained, as it was asked to")


def unload_idle(seen: Observation) -> Step | None:
    """An idle model is unloaded. At soft, one model always stays. At hard, the last one is unloaded
    too."""
    victim = _victim(seen)
    if victim is None or (seen.level is Level.SOFT and len(seen.unpinned) <= 1):
        return None
    return _unload(victim, WHY_FIRST)


def leave_running_alone(seen: Observation) -> Step | None:
    """At soft, running requests go on."""
    if seen.level is not Level.SOFT:
        return None
    return Step("Soft: nothing idle may go, and running requests are left alone.", last=True)


# Suspending the youngest running requests belongs here, before anything is aborted.


def wait_for_fresh_numbers(seen: Observation) -> Step | None:
    """Without fresh allocator numbers nothing is aborted, not even in an emergency: the device
    thread is in a long step, and cannot end a request before it sends new numbers."""
    if seen.usage.fresh:
        return None
    return Step("The allocator's numbers are old: nothing is aborted on them.", last=True)


def wait_for_the_ended(seen: Observation) -> Step | None:
    """Nothing more is aborted while ended requests still hold memory. The next step frees it, and
    no other request can end before that step."""
    if not any(model.ending for model in seen.loaded):
        return None
    return Step("Requests that were ended have not left the device yet.", last=True)


def abort_least_recent(seen: Observation) -> Step | None:
    """The requests of the least recently used busy model end. The model stays, except in an
    emergency. If none of its requests could be ended, the next model follows in the same tick.
    """
    model = choose_to_end(m for m in seen.unpinned if not seen.tried(AbortRequests, m.id))
    if model is None:
        return None
    actions: tuple[Action, ...] = (AbortRequests(model.id),)
    if seen.emergency:
        # Even if it drains already: a drain to make room has no deadline, but this mark has one.
        actions += (MarkPendingUnload(model.id),)
    return Step(f"Hard and nothing idle: requests of '{model.id}' are ended.", actions, last=True)


def abort_loads(seen: Observation) -> Step | None:
    """When no unpinned model is loaded, every load stops, including loads of pinned models."""
    loads = [m.id for m in seen.snapshot.models if m.loading and not m.load_aborting]
    if seen.unpinned or not loads:
        return None
    return Step("Hard: loads in progress stop.", (AbortLoads(tuple(sorted(loads))),), last=True)


def abort_everything(seen: Observation) -> Step | None:
    """In an emergency with only pinned models, their requests end and the models stay."""
    if seen.unpinned or not seen.emergency or seen.tried(AbortRequests):
        return None
    if not any(model.requests for model in seen.loaded):
        return None
    return Step("Emergency: all running requests are ended.", (AbortRequests(None),), last=True)


def reclaim_when_idle(seen: Observation) -> Step | None:
    """With only pinned models, the buffer cache is returned once they are idle."""
    if seen.unpinned or not seen.loaded:
        return None
    return Step("Hard with pinned models only: the pool goes when idle.", (IdleReclaim(),), True)


def warn(seen: Observation) -> Step | None:
    """The daemon has nothing left to give up."""
    return Step("Over the soft mark with nothing left to give up.", last=True)


RULES: tuple[Callable[[Observation], Step | None], ...] = (
    drop_images,
    end_deferred_tick,
    defer_to_pool,
    shrink_ram_cache,
    return_what_was_dropped,
    stop_when_relieved,
    unload_drained,
    unload_idle,
    leave_running_alone,
    wait_for_fresh_numbers,
    wait_for_the_ended,
    abort_least_recent,
    abort_loads,
    abort_everything,
    reclaim_when_idle,
    warn,
)


_CALM = {
    None: "Usage is low enough.",
    Pause.LEVEL: "Usage is no more than this tick aimed at.",
    Pause.RESUMING: "Below the soft mark: new requests wait for usage to fall a little further.",
    Pause.SYSTEM: "Usage is low enough, but the system is critically short of memory: "
    "new requests wait.",
}


def _abort_found_nothing(seen: Observation) -> bool:
    """Whether the last abort found no request to end, as when all leases belong to clients that do
    not read. The tick goes on then."""
    done = seen.outcome(AbortRequests)
    return done is not None and not done.accepted


def _buffer_cache_is_large(seen: Observation) -> bool:
    return seen.usage.buffer_cache is not None and seen.usage.buffer_cache > BUFFER_CACHE_FLOOR


def _victim(seen: Observation) -> ModelView | None:
    """The idle model to unload next, except models that this tick has tried already."""
    untried = (model for model in seen.unpinned if not seen.tried(EvictModel, model.id))
    return next(iter(choose_victims(untried)), None)


def _unload(model: ModelView, why: str) -> Step:
    unload = EvictModel(model.id, model.bytes)
    first: tuple[Action, ...] = (AbortRequests(model.id),) if model.requests else ()
    return Step(f"Over the soft mark: '{model.id}' {why}.", (*first, unload))
