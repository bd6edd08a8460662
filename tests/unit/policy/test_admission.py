from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlxd.memory_text import refusal_remedy, remedy
from omlxd.policy.admission import (
    Admit,
    EvictFirst,
    LoadContext,
    LoadNeed,
    LoadPlan,
    RefusalKind,
    Refuse,
    Wait,
    plan_load,
)
from omlxd.policy.ceiling import Binding, Ceilings
from omlxd.policy.readings import ModelView
from omlxd.policy.tiers import Tier
from omlxd.policy.usage import Usage
from omlxd.units import GiB
from tests.unit.policy.scene import CEILING, HARD, SOFT, ceilings, model
from tests.unit.policy.test_eviction import Views, idle


def used(size: int, *, active: int | None = None) -> Usage:
    return Usage(
        bytes=size, active=size if active is None else active, buffer_cache=0, footprint=size
    )


def plan(
    need: int,
    *models: ModelView,
    usage: int | None = None,
    bounds: Ceilings | None = None,
    **more: Any,
) -> LoadPlan:
    """``need`` bytes for model "new"; usage is what the models take unless given."""
    total = sum(m.bytes for m in models) if usage is None else usage
    scene = LoadContext(models, used(total), **more)
    return plan_load(LoadNeed("new", need), scene, bounds or ceilings())


def test_a_model_that_fits_below_the_soft_mark_is_admitted_with_a_reservation() -> None:
    need = LoadNeed("new", 10 * GiB, 2 * GiB)
    assert plan_load(need, LoadContext((), used(0)), ceilings()) == Admit(12 * GiB)


@pytest.mark.parametrize(
    ("usage", "evicts"), [(SOFT - 10 * GiB - 1, False), (SOFT - 10 * GiB, True)]
)
def test_room_is_made_down_to_the_soft_mark(usage: int, evicts: bool) -> None:
    """admission soft target = admission ceiling x soft: evict-before-load target"""
    answer = plan(10 * GiB, model("a", 5), usage=usage)
    assert answer == (EvictFirst(("a",)) if evicts else Admit(10 * GiB))


def test_the_coldest_single_model_that_frees_enough_goes() -> None:
    """the coldest single idle unpinned model that frees enough"""
    models = (
        model("cold_small", 5, last_used=0.0),
        model("cold_enough", 30, last_used=1.0),
        model("warm_enough", 30, last_used=2.0),
    )
    assert plan(40 * GiB, *models) == EvictFirst(("cold_enough",))


def test_else_the_largest_go_first() -> None:
    """else largest first"""
    models = (
        model("a", 20, last_used=0.0),
        model("b", 35, last_used=3.0),
        model("c", 25, last_used=2.0),
    )
    assert plan(60 * GiB, *models) == EvictFirst(("b", "c"))


@pytest.mark.parametrize("facts", [{"busy": True}, {"pinned": True}, {"loading": True}])
def test_only_idle_unpinned_loaded_models_are_evicted(facts: dict[str, bool]) -> None:
    answer = plan(60 * GiB, model("a", 50, **facts), model("b", 39, last_used=9.0), usage=89 * GiB)
    assert not isinstance(answer, EvictFirst) or answer.model_ids == ("b",)
    assert plan(60 * GiB, model("a", 50, **facts), usage=50 * GiB) != EvictFirst(("a",))


@pytest.mark.parametrize(
    ("usage", "admits"), [(HARD - 10 * GiB - 1, True), (HARD - 10 * GiB, False)]
)
def test_with_no_victim_it_is_admitted_below_the_hard_mark(usage: int, admits: bool) -> None:
    answer = plan(10 * GiB, model("a", 5, busy=True), usage=usage)
    assert isinstance(answer, Admit) is admits


def test_a_model_in_use_in_the_way_is_waited_for_t07() -> None:
    """T07: only one of A, B fits; A resident and busy: B waits, is not refused"""
    answer = plan(60 * GiB, model("a", 60, busy=True))
    assert answer == Wait("models in use are in the way", drain=("a",))
    assert plan(60 * GiB, model("a", 60)) == EvictFirst(("a",))


def test_no_more_models_are_drained_than_make_room() -> None:
    models = (
        model("idle", 10, last_used=9.0),
        model("busy", 40, busy=True, last_used=1.0),
        model("busier", 40, busy=True, last_used=2.0),
    )
    answer = plan(50 * GiB, *models)
    assert answer == Wait("models in use are in the way", drain=("idle", "busy"))


def test_what_was_asked_to_leave_stays_the_first_choice() -> None:
    """Its last requests do not make it the warmer one, so that yet another is asked."""
    models = (
        model("asked", 40, busy=True, pending_unload=True, last_used=9.0),
        model("colder", 40, busy=True, last_used=1.0),
    )
    assert plan(50 * GiB, *models) == Wait("models in use are in the way", drain=("asked",))


def test_nothing_idle_is_evicted_for_a_load_that_must_wait_anyway() -> None:
    answer = plan(60 * GiB, model("a", 60, busy=True), model("b", 1))
    assert isinstance(answer, Wait)


def test_an_unload_on_its_way_is_waited_for() -> None:
    """its bytes count as being freed"""
    leaving = model("a", 60, unloading=True)
    assert plan(60 * GiB, leaving, model("b", 1)) == Wait("another model is being unloaded")
    assert plan(60 * GiB, leaving, model("b", 38)) == EvictFirst(("b",))


def test_what_is_leaving_is_not_taken_for_residue() -> None:
    """The allocator's number alone counts only once what made room has left."""
    leaving = model("a", 40, unloading=True, busy=True)
    bounds, usage = ceilings(), used(50 * GiB, active=40 * GiB)
    need = LoadNeed("new", HARD - 50 * GiB)
    answer = plan_load(need, LoadContext((leaving,), usage, evicted=True), bounds)
    assert answer == Wait("another model is being unloaded")
    gone = LoadContext((), used(50 * GiB, active=0), evicted=True)
    assert plan_load(need, gone, bounds) == Admit(need.bytes)


def test_a_reservation_is_taken_so_two_loads_are_not_promised_the_same_memory() -> None:
    """A reservation is taken for what a load will need and has not yet allocated, so two that fit
    alone cannot both be admitted."""
    assert plan(60 * GiB) == Admit(60 * GiB)
    loading = model("a", 60, loading=True)
    answer = plan(60 * GiB, loading, usage=0, reserved=60 * GiB)
    assert answer == Wait("memory is promised to other loads")


@pytest.mark.parametrize(("need", "refused"), [(HARD - 1, False), (HARD, True)])
def test_a_model_that_alone_reaches_the_hard_mark_is_never_loaded(need: int, refused: bool) -> None:
    """No eternal reload: a model is loaded only if, alone, its weights and headroom stay below
    the hard mark."""
    answer = plan_load(LoadNeed("new", need - GiB, GiB), LoadContext((), used(0)), ceilings())
    assert isinstance(answer, Refuse) is refused
    if isinstance(answer, Refuse):
        assert answer.kind is RefusalKind.MODEL_TOO_LARGE
        assert answer.binding is Binding.DYNAMIC
        assert refusal_remedy(answer) == "Raise the custom ceiling."
        assert answer.details["limit_bytes"] == HARD
        assert answer.details["ceiling_bytes"] == CEILING
        assert answer.details["weights_bytes"] + answer.details["headroom_bytes"] == need


def test_what_other_apps_take_now_never_makes_a_model_too_large() -> None:
    """only what can never fit is refused at once: can never fit (alone, empty machine)"""
    bounds = ceilings(tier=Tier.BALANCED, dynamic=20 * GiB, metal=150 * GiB)
    answer = plan(60 * GiB, bounds=bounds)
    assert isinstance(answer, Refuse)
    assert answer.kind is RefusalKind.INSUFFICIENT_MEMORY
    assert answer.binding is Binding.DYNAMIC
    assert remedy(answer.ceilings, answer.binding).startswith("Close other apps")
    too_large = plan(160 * GiB, bounds=bounds)
    assert isinstance(too_large, Refuse)
    assert (too_large.kind, too_large.binding) == (
        RefusalKind.MODEL_TOO_LARGE,
        Binding.METAL_CAP,
    )


def test_pinned_models_in_the_way_are_named_in_the_remedy() -> None:
    answer = plan(60 * GiB, model("p", 60, pinned=True))
    assert isinstance(answer, Refuse)
    assert answer.kind is RefusalKind.INSUFFICIENT_MEMORY
    assert refusal_remedy(answer).startswith("Unpin or unload a pinned model.")
    assert answer.details["pinned_bytes"] == 60 * GiB


def test_residue_of_what_was_just_unloaded_does_not_refuse() -> None:
    """if something was evicted in this call, retest with max(active, tracked), since the footprint
    may still show residue"""
    residue = Usage(bytes=70 * GiB, active=GiB, buffer_cache=0, footprint=70 * GiB)
    before = plan_load(LoadNeed("new", 60 * GiB), LoadContext((), residue), ceilings())
    after = plan_load(LoadNeed("new", 60 * GiB), LoadContext((), residue, evicted=True), ceilings())
    assert isinstance(before, Refuse)
    assert after == Admit(60 * GiB)


def test_tracked_sizes_count_when_they_are_more_than_what_is_measured() -> None:
    """current = the largest of active, footprint and the sum of tracked sizes"""
    busy = model("a", 60, busy=True)
    assert isinstance(plan(60 * GiB, busy, usage=0), Wait)


def test_without_the_guard_a_load_only_evicts_and_is_never_refused() -> None:
    """admission ceiling: static when the guard is off (then it only evicts, never refuses)"""
    off = ceilings(enabled=False)
    assert plan(500 * GiB, bounds=off) == Admit(500 * GiB)
    assert plan(150 * GiB, model("a", 60), bounds=off) == EvictFirst(("a",))
    assert plan(150 * GiB, model("a", 60, busy=True), bounds=off) == Admit(150 * GiB)


def test_a_guard_that_only_watches_refuses_nothing() -> None:
    """Monitor mode (enforce = false): same decisions, logged and shown, nothing done"""
    seen: set[type] = set()
    for need, *models in (
        (500 * GiB,),
        (60 * GiB, model("p", 60, pinned=True)),
        (60 * GiB, model("a", 60)),
        (60 * GiB, model("a", 60, busy=True)),
        (GiB, model("a", 10)),
    ):
        for paused in (False, True):
            acting = plan(need, *models, paused=paused)
            watching = plan(need, *models, paused=paused, enforce=False)
            seen.add(type(acting))
            instead = None if isinstance(acting, Admit) else acting
            assert watching == Admit(need, instead_of=instead)
    assert seen == {Admit, EvictFirst, Wait, Refuse}


def test_a_guard_that_is_off_makes_room_whether_it_would_watch_or_act() -> None:
    off = ceilings(enabled=False)
    assert plan(150 * GiB, model("a", 60), bounds=off, enforce=False) == EvictFirst(("a",))


def test_while_paused_a_model_is_loaded_only_into_an_empty_machine() -> None:
    """the first request of a model that is not loaded waits unless nothing at all is loaded"""
    assert plan(GiB, paused=True) == Admit(GiB)
    busy = model("a", 60, busy=True)
    assert plan(GiB, busy, paused=True) == Wait("admission is paused by memory pressure")
    assert plan(GiB, busy) == Admit(GiB)


def test_a_paused_daemon_trades_an_idle_model_for_the_one_asked_for() -> None:
    """so a paused daemon can recover"""
    assert plan(GiB, model("a", 60), paused=True) == EvictFirst(("a",))


def test_the_model_itself_is_not_in_its_own_way() -> None:
    assert plan(60 * GiB, model("new", 60, loading=True), usage=0) == Admit(60 * GiB)


@given(models=Views, mark=st.sampled_from([SOFT, HARD, CEILING]), offset=st.integers(-2, 2))
def test_a_load_is_only_promised_what_is_there(
    models: tuple[ModelView, ...], mark: int, offset: int
) -> None:
    """two that fit alone cannot both be admitted; pinned and busy models are never evicted"""
    in_use = sum(m.bytes for m in models)
    need = mark + offset - in_use
    if need <= 0:
        return
    scene = LoadContext(models, used(in_use))
    by_id = {m.id: m for m in models}
    for _ in range(len(models) + 1):
        match plan_load(LoadNeed("new", need), scene, ceilings()):
            case Admit():
                assert scene.current + need < HARD
                assert scene.current + need < SOFT or not any(map(idle, scene.models))
                return
            case EvictFirst(model_ids=victims):
                assert scene.current + need >= SOFT
                for name in victims:
                    assert idle(by_id[name])
                kept = tuple(m for m in scene.models if m.id not in victims)
                scene = LoadContext(kept, used(sum(m.bytes for m in kept)))
            case Wait(drain=drain):
                assert not any(by_id[name].pinned for name in drain)
                return
            case Refuse():
                pinned = sum(m.bytes for m in models if m.pinned)
                assert need >= HARD or pinned + need >= HARD
                return
    raise AssertionError("the plan does not come to an end")


def test_what_the_allocator_pools_is_not_in_the_way_of_a_load() -> None:
    """It is given back before the load begins, so a swollen pool refuses and evicts nothing."""
    swollen = Usage(bytes=CEILING - 1, active=5 * GiB, buffer_cache=80 * GiB, footprint=CEILING - 1)
    scene = LoadContext((model("a", 5),), swollen)
    assert plan_load(LoadNeed("new", 10 * GiB), scene, ceilings()) == Admit(10 * GiB)


@pytest.mark.parametrize("more", [{}, {"busy": True}, {"pinned": True}])
def test_on_old_numbers_a_load_waits_and_nothing_is_refused_or_evicted(
    more: dict[str, Any],
) -> None:
    """nothing is refused or aborted on the old numbers"""
    stale = Usage(bytes=CEILING - 1, active=None, buffer_cache=None, footprint=CEILING - 1)
    scene = LoadContext((model("a", 5, **more),), stale)
    need = LoadNeed("new", 10 * GiB)
    assert plan_load(need, scene, ceilings()) == Wait("the allocator's numbers are old")


def test_on_old_numbers_nothing_goes_for_the_sake_of_the_soft_mark() -> None:
    """nothing is refused or aborted on the old numbers"""
    stale = Usage(bytes=SOFT - 5 * GiB, active=None, buffer_cache=None, footprint=SOFT - 5 * GiB)
    answer = plan_load(LoadNeed("new", 10 * GiB), LoadContext((model("a", 5),), stale), ceilings())
    assert answer == Wait("the allocator's numbers are old")


def test_on_old_numbers_a_load_that_fits_all_the_same_is_admitted() -> None:
    """the footprint alone still sets the level; a pool of unknown size counts as used"""
    stale = Usage(bytes=5 * GiB, active=None, buffer_cache=None, footprint=5 * GiB)
    need = LoadNeed("new", 10 * GiB)
    assert plan_load(need, LoadContext((model("a", 5),), stale), ceilings()) == Admit(10 * GiB)
    stale = replace(stale, bytes=SOFT - 5 * GiB)
    busy = LoadContext((model("a", 5, busy=True),), stale)
    assert plan_load(need, busy, ceilings()) == Admit(10 * GiB)
    too_large = plan_load(LoadNeed("new", CEILING), busy, ceilings())
    assert isinstance(too_large, Refuse)
    assert too_large.kind is RefusalKind.MODEL_TOO_LARGE


def test_a_load_that_was_just_stopped_waits_whatever_room_there_seems_to_be() -> None:
    answer = plan(GiB, since_stopped=4.9)
    assert isinstance(answer, Wait)
    assert "just stopped by memory pressure" in answer.reason
    assert answer.drain == ()
    assert plan(GiB, since_stopped=5.0) == Admit(GiB)
    assert plan(GiB, since_stopped=4.9, enforce=False) == Admit(GiB, instead_of=answer)
    off = replace(ceilings(), enabled=False)
    assert plan(GiB, since_stopped=4.9, bounds=off) == Admit(GiB)


def test_a_model_that_never_fits_hears_so_though_its_load_was_just_stopped() -> None:
    answer = plan(1000 * GiB, since_stopped=4.9)
    assert isinstance(answer, Refuse)
    assert answer.kind is RefusalKind.MODEL_TOO_LARGE
