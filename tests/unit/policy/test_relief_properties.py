"""Properties of whole ticks: the ceiling is chosen first, then usage stands near its marks."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from omlxd.policy.actions import (
    AbortLoads,
    AbortRequests,
    Action,
    ActionOutcome,
    EvictModel,
    MarkPendingUnload,
    ReclaimBufferCache,
    ShrinkRamCache,
    WalkStoreCap,
)
from omlxd.policy.decision import GuardState
from omlxd.policy.pressure import Level
from omlxd.policy.readings import ModelView
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.units import GiB, MiB
from tests.unit.policy.scene import ToyMachine

Policies = st.builds(
    GuardPolicy,
    tier=st.just(Tier.CUSTOM),
    custom_ceiling_bytes=st.integers(8, 190).map(lambda gib: gib * GiB),
    soft_threshold=st.sampled_from([0.5, 0.85, 0.9]),
    hard_threshold=st.sampled_from([0.95, 0.97, 1.0]),
)
Models = st.lists(
    st.builds(
        ModelView,
        id=st.sampled_from("abcdef"),
        weights_bytes=st.sampled_from([0, 1, 300 * MiB, GiB, 5 * GiB, 20 * GiB]),
        kv_bytes=st.sampled_from([0, GiB]),
        busy=st.booleans(),
        requests=st.integers(0, 2),
        pinned=st.booleans(),
        last_used=st.integers(0, 3).map(float),
        loading=st.sampled_from([False, False, True]),
        pending_unload=st.booleans(),
    ),
    max_size=5,
    unique_by=lambda model: model.id,
)


@st.composite
def machines(draw: st.DrawFn) -> ToyMachine:
    """A machine whose usage stands on, just under or just over one of its marks."""
    policy = draw(Policies)
    ceiling = policy.custom_ceiling_bytes or 0
    mark = draw(
        st.sampled_from([policy.soft, policy.hard, 1.0]).map(lambda share: int(ceiling * share))
    )
    offset = draw(
        st.sampled_from([-1, 0, 1, -GiB, GiB, 2 * GiB - 1, 2 * GiB]) | st.integers(-GiB, 4 * GiB)
    )
    toy = ToyMachine(
        models=draw(Models),
        pool=draw(st.sampled_from([0, 2 * GiB, 2 * GiB + 1, 6 * GiB])),
        cached=draw(st.sampled_from([None, 0, GiB, 10 * GiB])),
        images=draw(st.sampled_from([0, GiB])),
        policy=policy,
        state=GuardState(
            polls_over=draw(st.integers(0, 2)), deferrals=draw(st.sampled_from([0, 4, 5]))
        ),
    )
    toy.base = max(0, mark + offset - toy.usage)
    return toy


def soft(toy: ToyMachine) -> int:
    return int((toy.policy.custom_ceiling_bytes or 0) * toy.policy.soft)


def hard(toy: ToyMachine) -> int:
    return int((toy.policy.custom_ceiling_bytes or 0) * toy.policy.hard)


DESTRUCTIVE = (EvictModel, AbortRequests, AbortLoads, MarkPendingUnload, ShrinkRamCache)


@given(machines())
def test_pinned_and_leased_models_are_never_unloaded(toy: ToyMachine) -> None:
    """Pinned: never unloaded by pressure"""
    kept = {m.id for m in toy.models if m.pinned or m.busy or m.loading}
    decisions = toy.tick()
    unloaded = {a.model_id for d in decisions for a in d.actions if isinstance(a, EvictModel)}
    pinned = {m.id for m in toy.models if m.pinned}
    assert not unloaded & kept
    assert pinned <= kept
    assert not any(
        isinstance(a, MarkPendingUnload) and a.model_id in pinned
        for d in decisions
        for a in d.actions
    )


@given(machines())
def test_only_hard_hurts_running_work(toy: ToyMachine) -> None:
    """at soft otherwise stop: running requests are left alone"""
    busy = {m.id for m in toy.models if m.busy}
    for decision in toy.tick():
        for action in decision.actions:
            if isinstance(action, AbortRequests) and action.model_id in {*busy, None}:
                assert decision.memory.level is Level.HARD
            if isinstance(action, ShrinkRamCache | AbortLoads | MarkPendingUnload):
                assert decision.memory.level is Level.HARD
            if isinstance(action, MarkPendingUnload):
                assert decision.memory.emergency
            if action == AbortRequests(None):
                assert decision.memory.emergency
                assert all(m.pinned or m.loading for m in toy.models)


@given(machines())
def test_ok_means_nothing_is_taken(toy: ToyMachine) -> None:
    """ok: usage < soft mark"""
    toy.base = max(0, toy.base - max(0, toy.usage - soft(toy) + 1))
    assume(toy.usage < soft(toy))
    toy.tick()
    assert [type(action) for action in toy.done] == [WalkStoreCap]


@given(machines())
def test_enough_is_freed_or_everything_spare_is_given_up(toy: ToyMachine) -> None:
    """6. While usage > soft mark"""
    toy.state = replace(toy.state, deferrals=5)
    *_, last = toy.tick()
    if toy.usage <= soft(toy):
        return
    assert toy.images == 0
    idle = [m for m in toy.models if not (m.busy or m.pinned or m.loading)]
    ended = {a.model_id for a in toy.done if isinstance(a, AbortRequests)}
    spare = [m for m in idle if m.id not in ended]
    if last.memory.level is Level.HARD:
        assert spare == []
        assert toy.cached in (None, 0)
    else:
        unpinned = [m for m in toy.models if not (m.pinned or m.loading)]
        assert len(unpinned) <= 1 or spare == []


@given(machines())
def test_no_model_is_unloaded_needlessly(toy: ToyMachine) -> None:
    """the target is soft at every level"""
    before = {m.id: m for m in toy.models}
    for decision in toy.tick():
        usage = decision.memory.usage.bytes or 0
        unloads = [a for a in decision.actions if isinstance(a, EvictModel)]
        assert len(unloads) <= 1
        for unload in unloads:
            assert usage > soft(toy)
            assert unload.bytes == before[unload.model_id].bytes


@given(machines(), st.randoms(use_true_random=False))
def test_the_order_of_models_is_irrelevant(toy: ToyMachine, random: object) -> None:
    shuffled = replace(toy, models=list(toy.models), done=[])
    random.shuffle(shuffled.models)  # type: ignore[attr-defined]
    first = [(d.memory.level, d.actions, d.rule) for d in toy.tick()]
    assert first == [(d.memory.level, d.actions, d.rule) for d in shuffled.tick()]


@given(machines(), st.sampled_from([1, MiB, GiB, 3 * GiB]))
def test_more_use_is_never_answered_with_a_lower_level(toy: ToyMachine, more: int) -> None:
    """ok: usage < soft mark; soft: soft <= usage < hard; hard: usage >= hard."""
    toy.images = 0
    fuller = replace(toy, base=toy.base + more, models=list(toy.models), done=[])
    first, second = toy.tick()[0], fuller.tick()[0]
    assert second.memory.level >= first.memory.level
    assert second.memory.emergency >= first.memory.emergency
    assert second.memory.paused >= first.memory.paused


@given(machines())
def test_nothing_running_is_aborted_while_something_idle_could_go(toy: ToyMachine) -> None:
    """abort is the last resort"""
    busy = {m.id for m in toy.models if m.busy}
    idle = {m.id for m in toy.models if not (m.busy or m.pinned or m.loading)}
    gone: set[str] = set()
    for decision in toy.tick():
        for action in decision.actions:
            if isinstance(action, EvictModel):
                gone.add(action.model_id)
            if isinstance(action, AbortRequests) and action.model_id in {*busy, None}:
                assert gone == idle
                assert toy.images == 0
                assert toy.cached in (None, 0) or ShrinkRamCache in map(type, toy.done)
            if isinstance(action, AbortLoads):
                assert gone == idle


@given(machines())
def test_a_tick_never_repeats_itself_and_ends(toy: ToyMachine) -> None:
    """an action that freed nothing is not repeated in the same tick; the loop never spins"""
    toy.apply = _freed_nothing  # type: ignore[method-assign]
    decisions = toy.tick()
    asked = [
        (type(a), getattr(a, "model_id", None))
        for d in decisions
        for a in d.actions
        if not isinstance(a, MarkPendingUnload)
    ]
    assert len(asked) == len(set(asked))
    assert len(decisions) <= len(toy.models) + 6


def _freed_nothing(action: Action) -> ActionOutcome:
    return ActionOutcome(action, accepted=not isinstance(action, ReclaimBufferCache), freed=0)


@given(machines())
def test_a_machine_left_to_the_guard_settles(toy: ToyMachine) -> None:
    """so it does not oscillate"""
    for _ in range(20):
        toy.tick()
    models, pool = list(toy.models), toy.pool
    for _ in range(3):
        *_, last = toy.tick()
    assert (toy.models, toy.pool) == (models, pool)
    if toy.usage > soft(toy):
        left = [m for m in toy.models if not (m.pinned or m.loading)]
        assert len(left) <= 1 or all(m.busy for m in left)
        if last.memory.level is Level.HARD:
            # An abort can end everything except a lease without a request.
            assert not [m for m in left if not m.busy]
            assert not [m for m in left if m.requests]


@given(machines())
def test_a_guard_that_only_watches_touches_nothing(toy: ToyMachine) -> None:
    """Monitor mode: same decisions, nothing done"""
    watching = replace(
        toy, policy=replace(toy.policy, enforce=False), models=list(toy.models), done=[]
    )
    shown = watching.tick()
    first = toy.tick()[0]
    assert (shown[0].rule, shown[0].actions, shown[0].memory.level) == (
        first.rule,
        first.actions,
        first.memory.level,
    )
    assert watching.done == []
    assert not any(decision.memory.enforce or decision.memory.limits.enabled for decision in shown)


@given(machines(), st.lists(st.sampled_from([-2, -1, 0, 1, 2]), min_size=2, max_size=12))
def test_noise_inside_the_margin_does_not_flap(toy: ToyMachine, noise: list[int]) -> None:
    """Admission resumes only 2 % of the ceiling below the soft mark, so it does not flap"""
    toy = ToyMachine(models=[], policy=toy.policy)
    margin = (toy.policy.custom_ceiling_bytes or 0) // 200
    paused = []
    for step in noise:
        toy.base = max(0, soft(toy) + step * margin)
        paused.append(toy.tick()[-1].memory.paused)
    assert sum(a is not b for a, b in pairwise(paused)) <= 1
