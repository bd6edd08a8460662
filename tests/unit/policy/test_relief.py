from dataclasses import replace

import pytest

from omlxd.policy.actions import (
    AbortLoads,
    AbortRequests,
    ActionOutcome,
    DropImageCache,
    EvictModel,
    IdleReclaim,
    MarkPendingUnload,
    ReclaimBufferCache,
    ReturnFreePages,
    ShrinkRamCache,
    WalkStoreCap,
)
from omlxd.policy.ceiling import HotCache
from omlxd.policy.decision import Decision, GuardState
from omlxd.policy.pressure import Level, Pause
from omlxd.policy.readings import AllocatorSample, OsPressure, Source
from omlxd.policy.relief import decide
from omlxd.policy.tiers import SAMPLE_LIMIT, GuardPolicy, Tier
from omlxd.units import GiB
from tests.unit.policy.scene import (
    CEILING,
    HARD,
    POLICY,
    SOFT,
    ToyMachine,
    kinds,
    model,
    reading,
    snapshot,
)

DOWN, UP = WalkStoreCap(-1), WalkStoreCap(1)


def machine(usage: int, *models: object, **more: object) -> ToyMachine:
    """A machine at exactly ``usage`` bytes; what the models do not take is its base."""
    toy = ToyMachine(models=list(models), **more)  # type: ignore[arg-type]
    toy.base = usage - toy.usage
    return toy


def names(toy: ToyMachine) -> set[str]:
    return {m.id for m in toy.models}


# 1: limits


def test_new_limits_are_handed_out_also_when_all_is_ok() -> None:
    """1. Hand the new limits to every scheduler (also when all is ok)."""
    decision = decide(GuardState(), snapshot(GiB), POLICY)
    assert decision.memory.level is Level.OK
    assert (decision.memory.limits.soft_bytes, decision.memory.limits.hard_bytes) == (SOFT, HARD)
    assert (decision.memory.limits.generation, decision.memory.limits.enabled) == (1, True)
    again = decide(decision.next_state, snapshot(GiB, now=1.0), POLICY)
    assert again.memory.limits is decision.memory.limits


def test_with_the_guard_off_nothing_happens_and_counters_reset() -> None:
    """Guard off: level ok, reset the counters, stop here ([+] the store caps still walk up)."""
    state = GuardState(Level.HARD, pause=Pause.LEVEL, polls_over=3, deferrals=4)
    off = replace(POLICY, enabled=False)
    decision = decide(state, snapshot(2 * CEILING, [model("a")]), off)
    assert (decision.memory.level, decision.memory.paused, decision.memory.emergency) == (
        Level.OK,
        False,
        False,
    )
    assert decision.actions == (UP,)
    assert not decision.look_again
    assert (decision.next_state.polls_over, decision.next_state.deferrals) == (0, 0)
    assert (decision.memory.ceiling, decision.memory.limits.enabled) == (None, False)
    assert decision.rule == "guard_off"


# 2: decoded images


def test_decoded_images_go_before_anything_is_paused_or_evicted() -> None:
    """2. usage >= soft: drop the decoded-image cache, measure again, before anything is paused or
    evicted."""
    toy = machine(SOFT, model("a"), model("b"), images=GiB)
    first, last = toy.tick()
    assert first.actions == (DropImageCache(),)
    assert (first.memory.level, first.memory.paused, first.memory.limits.admission_paused) == (
        Level.OK,
        False,
        False,
    )
    assert (last.memory.level, last.memory.paused, last.actions) == (Level.OK, False, (UP,))
    assert names(toy) == {"a", "b"}


def test_images_stay_below_the_soft_mark() -> None:
    """2. usage >= soft: drop the decoded-image cache"""
    toy = machine(SOFT - 1, images=GiB)
    toy.tick()
    assert toy.images == GiB


def test_an_image_cache_that_frees_nothing_is_dropped_once_a_tick() -> None:
    """an action that freed nothing is not repeated in the same tick"""
    unknown = snapshot(SOFT, image_cache_bytes=None)
    first = decide(GuardState(), unknown, POLICY)
    assert first.actions == (DropImageCache(),)
    assert DropImageCache() not in decide(first.next_state, unknown, POLICY).actions


# 3: level and emergency


def test_the_level_is_settled_and_pauses_admission() -> None:
    """3. Level and emergency. A level change is logged and handed on at once."""
    (decision,) = machine(SOFT, model("a", busy=True)).tick()
    assert (decision.memory.level, decision.memory.paused) == (Level.SOFT, True)
    assert decision.memory.limits.admission_paused
    assert decision.next_state.level is Level.SOFT


def test_the_second_poll_over_the_ceiling_is_an_emergency() -> None:
    """emergency: usage >= ceiling for the second poll in a row"""
    toy = machine(CEILING)
    assert [toy.tick()[-1].memory.emergency for _ in range(3)] == [False, True, True]
    toy.base = CEILING - 1
    assert not toy.tick()[-1].memory.emergency
    toy.base = CEILING
    assert not toy.tick()[-1].memory.emergency


def test_a_burst_of_wakes_is_one_poll() -> None:
    """Ticks closer together than half a poll interval (a burst of wakes) count once: for the
    emergency, the deferrals, the cap walk and the samples of the median."""
    toy = machine(CEILING)
    first = toy.tick()[-1]
    assert first.actions == (DOWN,)
    for _ in range(4):
        burst = toy.tick(after=0.1)[-1]
        assert (burst.memory.emergency, burst.actions) == (False, ())
    assert toy.tick(after=0.1)[-1].memory.emergency


# 4: deferring to the pool


def test_a_swollen_pool_is_returned_before_anything_is_given_up() -> None:
    """4. Level not ok, no emergency, fewer than 5 deferrals in this episode, and the MLX pool
    above 2 GiB: ask every scheduler for request_pressure_reclaim, count one deferral, walk the
    store caps, end the tick. Nothing destructive happens."""
    toy = machine(HARD, model("a"), model("b"), pool=2 * GiB + 1, cached=GiB)
    first, last = toy.tick()
    assert (first.rule, first.actions) == ("defer_to_pool", (ReclaimBufferCache(),))
    assert (last.rule, last.actions) == ("end_deferred_tick", (DOWN,))
    assert last.next_state.deferrals == 1
    assert names(toy) == {"a", "b"}


@pytest.mark.parametrize("level", [Level.SOFT, Level.HARD])
def test_a_pool_at_its_floor_is_left_alone(level: Level) -> None:
    """the MLX pool above 2 GiB"""
    usage = SOFT if level is Level.SOFT else HARD
    toy = machine(usage, model("a", busy=True), pool=2 * GiB)
    toy.tick()
    assert ReclaimBufferCache() not in toy.done


def test_five_polls_of_an_episode_defer_at_most() -> None:
    """fewer than 5 deferrals in this episode"""
    state = GuardState()
    rules = []
    for poll in range(6):
        first = decide(
            state, snapshot(SOFT + 1, [model("a", busy=True)], now=poll, pool=3 * GiB), POLICY
        )
        rules.append(first.rule)
        if first.look_again:
            second = snapshot(SOFT + 1, [model("a", busy=True)], now=poll, pool=3 * GiB)
            first = decide(first.next_state, second, POLICY)
        state = first.next_state
    assert rules == ["defer_to_pool"] * 5 + ["leave_running_alone"]
    assert state.deferrals == 5


def test_the_deferrals_start_anew_once_the_level_is_ok() -> None:
    """The count resets when the level returns to ok."""
    state = GuardState(Level.SOFT, deferrals=5)
    assert decide(state, snapshot(SOFT), POLICY).next_state.deferrals == 5
    assert decide(state, snapshot(SOFT - 1), POLICY).next_state.deferrals == 0


def test_a_reclaim_that_nobody_takes_falls_through() -> None:
    """A request that no scheduler takes falls through."""
    scene = snapshot(SOFT + 1, [model("a", last_used=1.0), model("b")], pool=3 * GiB)
    first = decide(GuardState(), scene, POLICY)
    refused = replace(scene, outcomes=(ActionOutcome(ReclaimBufferCache(), accepted=False),))
    second = decide(first.next_state, refused, POLICY)
    assert second.actions == (EvictModel("b", 10 * GiB),)
    assert second.next_state.deferrals == 0


def test_an_emergency_does_not_defer() -> None:
    """Level not ok, no emergency"""
    toy = machine(CEILING + 2 * GiB, model("a"), pool=3 * GiB)
    assert toy.tick()[0].rule == "return_what_was_dropped"


def test_a_deferral_in_a_burst_is_not_counted_twice() -> None:
    """Ticks closer together than half a poll interval count once: for the deferrals"""
    toy = machine(HARD + 9 * GiB // 10, model("a", busy=True), pool=3 * GiB)
    toy.apply = lambda action: ActionOutcome(action)  # type: ignore[method-assign]
    toy.tick()
    toy.tick(after=0.2)
    assert toy.state.deferrals == 1
    toy.tick(after=0.3)
    assert toy.state.deferrals == 2


# 5: the hot cache


def test_at_hard_the_hot_cache_shrinks_to_the_soft_mark() -> None:
    """5. Hard: shrink the hot cache by (usage - soft); if that freed something, give malloc pages
    back; ask for a pool reclaim if something was freed, since dropped references only moved into
    MLX's pool. If something was freed: measure again; at ok walk the caps and end the tick."""
    toy = machine(HARD, model("a"), cached=20 * GiB)
    shrink, give, last = toy.tick()
    assert shrink.actions == (ShrinkRamCache(HARD - SOFT),)
    assert give.actions == (ReturnFreePages(), ReclaimBufferCache())
    assert (last.memory.level, last.actions) == (Level.SOFT, (DOWN,))
    assert names(toy) == {"a"}


def test_the_pool_is_reclaimed_however_little_was_dropped() -> None:
    """ask for a pool reclaim if something was freed or the pool is above 2 GiB"""
    _, give, *_ = machine(HARD, model("a", busy=True), cached=GiB).tick()
    assert give.actions == (ReturnFreePages(), ReclaimBufferCache())


def test_the_level_may_fall_to_ok_after_the_hot_cache_shrank() -> None:
    """level and emergency anew; the level may fall to soft or ok and is handed on"""
    toy = machine(HARD, model("a"), model("b"), cached=20 * GiB, pool=GiB)
    *_, last = toy.tick()
    assert (last.memory.level, last.rule, last.actions) == (Level.OK, "stop_when_relieved", (UP,))
    assert names(toy) == {"a", "b"}


def test_a_hot_cache_that_frees_nothing_is_not_asked_twice() -> None:
    """an action that freed nothing is not repeated in the same tick"""
    state, scene = GuardState(), snapshot(HARD, hot_cache=HotCache(GiB, GiB))
    first = decide(state, scene, POLICY)
    assert first.actions == (ShrinkRamCache(HARD - SOFT),)
    nothing = replace(scene, outcomes=(ActionOutcome(first.actions[0], freed=0),))
    assert decide(first.next_state, nothing, POLICY).rule == "warn"


def test_a_swollen_pool_is_reclaimed_at_hard_though_nothing_was_dropped() -> None:
    """ask for a pool reclaim if something was freed or the pool is above 2 GiB"""
    toy = machine(HARD, model("a", busy=True), pool=3 * GiB)
    toy.state = GuardState(Level.HARD, deferrals=5)
    toy.tick()
    assert toy.done[0] == ReclaimBufferCache()
    assert ReturnFreePages() not in toy.done


def test_at_soft_the_hot_cache_stays() -> None:
    """5. Hard: shrink the hot cache"""
    toy = machine(HARD - 1, model("a", busy=True), cached=GiB)
    toy.tick()
    assert toy.cached == GiB


# 6: models


def test_a_drained_pending_unload_goes_first() -> None:
    """a. an entry with a pending unload that has drained: unload it, go on"""
    toy = machine(
        SOFT + 1,
        model("old", last_used=1.0),
        model("drained", last_used=9.0, pending_unload=True),
        model("undrained", last_used=0.0, pending_unload=True, busy=True),
    )
    first = toy.tick()[0]
    assert (first.rule, first.actions) == ("unload_drained", (EvictModel("drained", 10 * GiB),))
    assert names(toy) == {"old", "undrained"}


def test_a_drained_pending_unload_goes_even_as_the_last_at_soft() -> None:
    """a. an entry with a pending unload that has drained: unload it"""
    toy = machine(SOFT + 1, model("a", pending_unload=True))
    toy.tick()
    assert names(toy) == set()


def test_the_least_recently_used_idle_model_goes_until_the_soft_mark() -> None:
    """b. the least recently used idle, unpinned model; unload, go on. The target is soft at every
    level, so it does not oscillate"""
    toy = machine(
        HARD + 4 * GiB,
        model("b", last_used=2.0),
        model("a", last_used=1.0),
        model("c", last_used=3.0),
    )
    decisions = toy.tick()
    assert [d.actions for d in decisions] == [
        (EvictModel("a", 10 * GiB),),
        (EvictModel("b", 10 * GiB),),
        (UP,),
    ]
    assert decisions[-1].memory.level is Level.OK


def test_of_models_used_at_the_same_time_the_order_given_decides_nothing() -> None:
    for models in ([model("a"), model("b")], [model("b"), model("a")]):
        toy = machine(SOFT + 1, *models)
        toy.tick()
        assert names(toy) == {"b"}


def test_relief_stops_exactly_at_the_soft_mark() -> None:
    """6. While usage > soft mark"""
    toy = machine(SOFT, model("a"), model("b"))
    toy.tick()
    assert names(toy) == {"a", "b"}
    toy = machine(SOFT + 1, model("a"), model("b"))
    toy.tick()
    assert names(toy) == {"b"}


def test_the_target_is_the_mark_of_the_ticks_start() -> None:
    """it is the mark of this tick's start"""
    scene = snapshot(SOFT + 20 * GiB, [model("a"), model("b", last_used=1.0)])
    first = decide(GuardState(), scene, POLICY)
    lower = replace(POLICY, custom_ceiling_bytes=CEILING // 2)
    later = snapshot(SOFT, [model("b", last_used=1.0)])
    assert decide(first.next_state, later, lower).rule == "stop_when_relieved"


def test_the_host_counters_do_not_age_during_a_slow_tick() -> None:
    """a second look in the same tick refreshes usage, not the host counters"""
    policy = GuardPolicy(tier=Tier.BALANCED)
    toy = [model("a", 2), model("b", 2, last_used=1.0), model("c", 2, last_used=2.0)]
    free = {"total": 64 * GiB, "free": 2 * GiB}
    first = decide(
        GuardState(), snapshot(30 * GiB, toy, reading=reading(footprint=30 * GiB, **free)), policy
    )
    assert first.actions == (EvictModel("a", 2 * GiB),)
    sources = {"footprint": Source("kernel", 7.0)}
    slow = reading(footprint=28 * GiB, counted_footprint=30 * GiB, sources=sources, **free)
    second = decide(first.next_state, snapshot(28 * GiB, toy[1:], now=7.0, reading=slow), policy)
    assert second.memory.ceiling == first.memory.ceiling
    assert (second.memory.level, second.actions) == (Level.HARD, (EvictModel("b", 2 * GiB),))


def test_at_soft_one_model_always_stays() -> None:
    """at soft only while more than one unpinned model is loaded (busy ones count)"""
    alone = machine(HARD - 1, model("a"))
    alone.tick()
    assert names(alone) == {"a"}
    beside_busy = machine(HARD - 1, model("a"), model("b", busy=True))
    beside_busy.tick()
    assert names(beside_busy) == {"b"}
    beside_pinned = machine(HARD - 1, model("a"), model("p", pinned=True))
    beside_pinned.tick()
    assert names(beside_pinned) == {"a", "p"}


def test_at_hard_even_the_last_model_goes() -> None:
    """at hard even the last one (it holds no KV worth keeping)"""
    toy = machine(HARD, model("a"))
    toy.tick()
    assert names(toy) == set()


@pytest.mark.parametrize("usage", [SOFT + 1, HARD])
def test_leftover_requests_of_an_idle_model_are_aborted_first(usage: int) -> None:
    """leftover requests aborted first, at either level"""
    toy = machine(usage, model("a", requests=2), model("b", last_used=1.0))
    assert toy.tick()[0].actions == (AbortRequests("a"), EvictModel("a", 10 * GiB))


def test_at_soft_running_requests_are_left_alone() -> None:
    """at soft otherwise stop: running requests are left alone"""
    toy = machine(HARD - 1, model("a", busy=True), model("b", busy=True))
    (decision,) = toy.tick()
    assert (decision.rule, decision.actions) == ("leave_running_alone", (DOWN,))


def test_at_hard_the_coldest_busy_models_requests_end_and_it_stays() -> None:
    """c. hard, only busy unpinned models: abort the requests of the least recently used one and
    keep it loaded for now; stop."""
    toy = machine(
        HARD,
        model("b", busy=True, last_used=2.0),
        model("a", busy=True, last_used=1.0),
        model("p", pinned=True, busy=True),
    )
    first, last = toy.tick()
    assert first.actions == (AbortRequests("a"),)
    assert (last.rule, last.actions) == ("abort_least_recent", (DOWN,))
    assert names(toy) == {"a", "b", "p"}


def test_a_model_whose_requests_ended_is_unloaded_at_the_next_tick_if_still_hard() -> None:
    """(Kept loaded means by this tick: idle and still at hard, it falls to b at the next.)"""
    toy = machine(HARD, model("a", busy=True))
    toy.tick()
    assert names(toy) == {"a"}
    toy.tick()
    assert names(toy) == set()


def test_in_an_emergency_the_busy_model_is_marked_to_go() -> None:
    """in an emergency additionally mark a pending unload, try it at once, else leave it to a
    poller, so the mark always clears; stop."""
    toy = machine(CEILING + 2 * GiB, model("a", busy=True))
    assert toy.tick()[0].actions == (AbortRequests("a"), MarkPendingUnload("a"))


def test_a_model_that_drains_already_is_marked_too() -> None:
    """so the mark always clears: a drain for another's sake has no deadline of its own"""
    toy = machine(CEILING + 2 * GiB, model("a", busy=True, pending_unload=True))
    assert toy.tick()[0].actions == (AbortRequests("a"), MarkPendingUnload("a"))


def test_a_model_that_is_only_leased_is_passed_over_for_one_with_requests() -> None:
    toy = machine(HARD, model("a", busy=True, requests=0), model("b", busy=True, last_used=1.0))
    assert toy.tick()[0].actions == (AbortRequests("b"),)


def test_an_abort_that_meets_nobody_goes_on_to_the_next_busy_model() -> None:
    """c. abort the requests of the least recently used one: a reader that has stalled does not
    shield the others."""
    toy = machine(
        HARD,
        model("a", busy=True, requests=0, last_used=1.0),
        model("b", busy=True, last_used=2.0),
    )
    # "a" ended while the guard looked.
    stale = replace(toy.snapshot(), models=(replace(toy.models[0], requests=1), toy.models[1]))
    first = decide(toy.state, stale, POLICY)
    assert first.actions == (AbortRequests("a"),)
    refused = replace(stale, outcomes=(ActionOutcome(AbortRequests("a"), accepted=False),))
    second = decide(first.next_state, refused, POLICY)
    assert second.actions == (AbortRequests("b"),)
    taken = replace(stale, outcomes=(ActionOutcome(AbortRequests("b")),))
    assert decide(second.next_state, taken, POLICY).rule == "abort_least_recent"


def test_an_emergency_in_which_nobody_can_be_ended_asks_for_the_pool_when_idle() -> None:
    """d. otherwise request_idle_reclaim on every scheduler"""
    scene = snapshot(CEILING + 2 * GiB, [model("p", pinned=True, busy=True)])
    first = decide(GuardState(), scene, POLICY)
    assert first.actions == (AbortRequests(None),)
    refused = replace(scene, outcomes=(ActionOutcome(AbortRequests(None), accepted=False),))
    assert decide(first.next_state, refused, POLICY).actions == (IdleReclaim(),)


def test_with_nothing_unpinned_every_load_in_progress_stops() -> None:
    """d. hard, nothing unpinned: flag every load in progress to abort (pinned ones too)"""
    toy = machine(
        CEILING + 2 * GiB,
        model("p", pinned=True, busy=True),
        model("x", loading=True),
        model("q", loading=True, pinned=True),
    )
    assert toy.tick()[0].actions == (AbortLoads(("q", "x")),)
    assert not any(isinstance(action, AbortRequests) for action in toy.done)


def test_a_load_is_left_alone_while_something_unpinned_is_loaded() -> None:
    """d. hard, nothing unpinned"""
    toy = machine(HARD, model("a", busy=True), model("x", loading=True))
    toy.tick()
    assert kinds(toy.done) == ["AbortRequests", "WalkStoreCap"]
    leased_meanwhile = machine(HARD, model("a"), model("x", loading=True), refuse=frozenset("a"))
    leased_meanwhile.tick()
    assert kinds(leased_meanwhile.done) == ["EvictModel", "WalkStoreCap"]


def test_in_an_emergency_all_requests_of_pinned_models_end() -> None:
    """if none was newly flagged: in an emergency and still over the ceiling abort all active
    requests and keep the models"""
    toy = machine(
        CEILING + 2 * GiB,
        model("p", pinned=True, busy=True),
        model("x", loading=True, load_aborting=True),
    )
    assert toy.tick()[0].actions == (AbortRequests(None),)
    assert "p" in names(toy)


@pytest.mark.parametrize("usage", [HARD, CEILING + 2 * GiB - 1])
def test_short_of_an_emergency_pinned_models_give_their_pool_when_idle(usage: int) -> None:
    """otherwise request_idle_reclaim on every scheduler; its requests are aborted only in an
    emergency"""
    toy = machine(usage, model("p", pinned=True, busy=True))
    assert toy.tick()[0].actions == (IdleReclaim(),)


def test_with_nothing_loaded_there_is_only_a_warning() -> None:
    """with nothing loaded only a warning. Stop."""
    (decision,) = machine(CEILING + 9 * GiB).tick()
    assert (decision.rule, decision.actions) == ("warn", (DOWN,))


@pytest.mark.parametrize("usage", [SOFT, HARD, CEILING, CEILING + 9 * GiB])
def test_pinned_models_are_never_unloaded(usage: int) -> None:
    """Pinned: never unloaded by pressure; its requests are aborted only in an emergency."""
    toy = machine(
        usage, model("p", pinned=True, pending_unload=True), model("q", pinned=True, busy=True)
    )
    for _ in range(8):
        toy.tick()
    assert names(toy) == {"p", "q"}


def test_an_unload_that_is_refused_is_not_tried_again_in_the_tick() -> None:
    """an action that freed nothing is not repeated in the same tick"""
    toy = machine(HARD, model("a"), model("b", last_used=1.0), refuse=frozenset({"a"}))
    toy.tick()
    assert [a for a in toy.done if isinstance(a, EvictModel)] == [
        EvictModel("a", 10 * GiB),
        EvictModel("b", 10 * GiB),
    ]


@pytest.mark.parametrize("shown", [True, False])
def test_an_unload_in_flight_counts_as_being_freed(shown: bool) -> None:
    """An unload that must wait for a long step is waited for at most one poll, then it is in
    flight and its bytes count as being freed."""
    if shown:
        toy = machine(HARD, model("a", unloading=True), model("b"))
    else:
        toy = machine(HARD, model("a"), model("b", last_used=1.0), slow=frozenset({"a"}))
    last = toy.tick()[-1]
    assert (last.rule, last.memory.level) == ("stop_when_relieved", Level.HARD)
    assert names(toy) == {"a", "b"}


def test_on_old_numbers_nothing_is_aborted_not_even_in_an_emergency() -> None:
    """the footprint alone still sets the level, but nothing is refused or aborted on the old
    numbers"""
    old = AllocatorSample(0.0, 0, 50 * GiB, 0)
    busy = [model("a", busy=True)]
    scene = snapshot(HARD, busy, now=6.0, sample=old, reading=reading(6.0, footprint=HARD))
    decision = decide(GuardState(), scene, POLICY)
    assert (decision.memory.level, decision.rule) == (Level.HARD, "wait_for_fresh_numbers")
    for models in (busy, [model("p", pinned=True, busy=True), model("x", loading=True)]):
        over = replace(
            scene, models=tuple(models), reading=reading(6.0, footprint=CEILING + 2 * GiB)
        )
        decision = decide(GuardState(), over, POLICY)
        assert (decision.memory.emergency, decision.actions) == (True, (DOWN,))


def test_nothing_more_is_aborted_while_what_was_ended_leaves_the_device() -> None:
    leaving = model("a", busy=True, requests=0, ending=2, last_used=1.0)
    other = model("b", busy=True, last_used=2.0)
    decision = decide(GuardState(), snapshot(HARD, [leaving, other]), POLICY)
    assert (decision.rule, decision.actions) == ("wait_for_the_ended", (DOWN,))
    gone = replace(leaving, busy=False, ending=0)
    assert decide(GuardState(), snapshot(HARD, [gone, other]), POLICY).rule == "unload_idle"


def test_an_old_sample_neither_defers_nor_raises_the_level() -> None:
    """A sample of the device thread older than its limit loses its MLX terms"""
    old = AllocatorSample(0.0, 2 * CEILING, 50 * GiB, 0)
    scene = snapshot(0, now=6.0, sample=old, reading=reading(6.0, footprint=GiB))
    assert decide(GuardState(), scene, POLICY).memory.level is Level.OK


def test_unknown_usage_gives_up_nothing_and_holds_nobody_up() -> None:
    """None means unknown, zero means zero"""
    scene = snapshot(0, [model("a"), model("b")], sample=None, reading=reading(footprint=None))
    decision = decide(GuardState(Level.HARD, pause=Pause.LEVEL), scene, POLICY)
    assert (decision.memory.level, decision.memory.paused, decision.actions) == (
        Level.OK,
        False,
        (UP,),
    )


def test_a_critical_system_pauses_but_gives_up_nothing() -> None:
    """ "critical" pauses admission as a soft level does"""
    critical = reading(footprint=0, os_pressure=OsPressure.CRITICAL)
    scene = snapshot(0, [model("a"), model("b")], reading=critical)
    decision = decide(GuardState(), scene, POLICY)
    assert (decision.memory.level, decision.memory.pause, decision.actions) == (
        Level.OK,
        Pause.SYSTEM,
        (UP,),
    )
    assert decision.memory.limits.admission_paused
    assert "system is critically short of memory" in decision.reason


def test_the_systems_pressure_counts_no_longer_than_any_other_number() -> None:
    """a frozen one refuses nothing for ever"""
    frozen = reading(footprint=0, os_pressure=OsPressure.CRITICAL)
    for now, pause in ((SAMPLE_LIMIT, Pause.SYSTEM), (SAMPLE_LIMIT + 0.1, None), (1000.0, None)):
        decision = decide(GuardState(), snapshot(0, now=now, reading=frozen), POLICY)
        assert decision.memory.pause is pause
    at = {"os_pressure": Source("sysctl", 990.0)}
    stale = reading(1000.0, footprint=0, os_pressure=OsPressure.CRITICAL, sources=at)
    assert not decide(GuardState(), snapshot(0, now=1000.0, reading=stale), POLICY).memory.paused


def test_the_systems_pressure_does_not_age_during_a_slow_tick() -> None:
    critical = reading(footprint=SOFT, os_pressure=OsPressure.CRITICAL)
    scene = snapshot(SOFT, reading=critical, image_cache_bytes=GiB)
    first = decide(GuardState(), scene, POLICY)
    assert first.look_again
    renewed = replace(critical, footprint=0, sources={"footprint": Source("own", 9.0)})
    last = decide(first.next_state, snapshot(0, now=9.0, reading=renewed), POLICY)
    assert last.memory.pause is Pause.SYSTEM


# 7 and 8: settling


def test_the_tick_ends_with_the_level_it_reached() -> None:
    """7. Measure again with a fresh ceiling, settle the level, reset the counters that ended."""
    toy = machine(CEILING + 2 * GiB, model("a", 30))
    toy.state = GuardState(Level.HARD, pause=Pause.LEVEL, polls_over=1, deferrals=5)
    last = toy.tick()[-1]
    assert (last.memory.level, last.memory.paused, last.memory.emergency) == (
        Level.OK,
        False,
        False,
    )
    assert (toy.state.polls_over, toy.state.deferrals, toy.state.tick) == (0, 0, None)


def test_relief_to_just_under_the_mark_leaves_admission_paused() -> None:
    """Admission resumes only 2 % of the ceiling below the soft mark"""
    toy = machine(SOFT + 9 * GiB, model("a"), model("b"))
    last = toy.tick()[-1]
    assert (last.memory.level, last.memory.pause) == (Level.OK, Pause.RESUMING)
    assert last.reason == (
        "Below the soft mark: new requests wait for usage to fall a little further."
    )


@pytest.mark.parametrize(
    ("usage", "walk"), [(SOFT - 1, UP), (SOFT, DOWN), (HARD, DOWN), (CEILING, DOWN)]
)
def test_store_caps_walk_one_step_every_tick(usage: int, walk: WalkStoreCap) -> None:
    """8. adjust_store_cache_cap(level) on every scheduler, on every tick, deferred and ok ticks
    included: one step each, +1 at ok, -1 at soft or hard"""
    toy = machine(usage, model("p", pinned=True))
    toy.tick()
    assert [a for a in toy.done if isinstance(a, WalkStoreCap)] == [walk]


def test_a_guard_that_only_watches_decides_the_same_and_does_nothing() -> None:
    """Monitor mode (enforce = false): same decisions, logged and shown, nothing done."""
    models = [model("a"), model("b", last_used=1.0), model("c", busy=True, last_used=2.0)]
    acting = machine(HARD + 4 * GiB, *models)
    watching = machine(HARD + 4 * GiB, *models, policy=replace(POLICY, enforce=False))
    done, shown = acting.tick(), watching.tick()
    assert [a for d in shown for a in d.actions if not isinstance(a, WalkStoreCap)] == [
        a for d in done for a in d.actions if not isinstance(a, WalkStoreCap)
    ]
    assert not any(decision.memory.enforce for decision in shown)
    assert names(watching) == {"a", "b", "c"}
    assert shown[-1].memory.paused
    assert not shown[-1].memory.limits.enabled


def test_every_decision_cites_its_reading_and_names_its_rule() -> None:
    """each decision uses exactly one, and cites it in its log record"""
    decision: Decision = decide(GuardState(), snapshot(GiB, now=7.5), POLICY)
    assert decision.memory.reading.taken_at == 7.5
    assert (decision.rule, decision.reason != "") == ("stop_when_relieved", True)
