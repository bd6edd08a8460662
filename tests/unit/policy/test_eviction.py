"""Which model goes first, for the guard's relief and for room before a load."""

from hypothesis import given
from hypothesis import strategies as st

from omlxd.policy.eviction import choose_to_end, choose_victims
from omlxd.policy.readings import ModelView
from omlxd.units import GiB
from tests.unit.policy.scene import model

Views = st.lists(
    st.builds(
        ModelView,
        id=st.sampled_from("abcdef"),
        weights_bytes=st.sampled_from([0, 1, GiB, 10 * GiB, 30 * GiB, 60 * GiB]),
        kv_bytes=st.sampled_from([0, GiB]),
        busy=st.booleans(),
        requests=st.just(0),
        pinned=st.booleans(),
        last_used=st.integers(0, 3).map(float),
        loading=st.sampled_from([False, False, True]),
        unloading=st.sampled_from([False, False, True]),
    ),
    max_size=5,
    unique_by=lambda view: view.id,
).map(tuple)


def idle(model: ModelView) -> bool:
    """It may be unloaded, and no request uses it."""
    return not any((model.busy, model.pinned, model.loading, model.unloading))


def ids(models: tuple[ModelView, ...]) -> str:
    return "".join(model.id for model in models)


MODELS = (
    model("d", 10, last_used=4),
    model("c", 30, last_used=3),
    model("b", 20, last_used=2),
    model("a", 5, last_used=1),
    model("x", 40, last_used=0, busy=True),
    model("p", 50, last_used=0, pinned=True),
    model("l", 50, last_used=0, loading=True),
    model("u", 50, last_used=0, unloading=True),
)


def test_the_relief_takes_the_least_recently_used_idle_unpinned_model() -> None:
    assert ids(choose_victims(MODELS)) == "a"
    assert choose_victims(MODELS[4:]) == ()


def test_equally_cold_models_go_in_the_order_of_their_names() -> None:
    assert ids(choose_victims((model("b"), model("a"), model("c")))) == "a"


def test_a_model_that_was_asked_to_leave_goes_before_colder_ones() -> None:
    asked = model("e", 10, last_used=9, pending_unload=True)
    assert ids(choose_victims((*MODELS, asked))) == "e"
    assert ids(choose_victims((*MODELS, asked), 6 * GiB)) == "e"


def test_room_for_a_load_is_made_by_the_coldest_single_model_that_frees_enough() -> None:
    assert ids(choose_victims(MODELS, 4 * GiB)) == "a"
    assert ids(choose_victims(MODELS, 6 * GiB)) == "b"
    assert ids(choose_victims(MODELS, 21 * GiB)) == "c"
    assert choose_victims(MODELS, 0) == ()


def test_when_no_single_one_frees_enough_the_largest_go_first() -> None:
    assert ids(choose_victims(MODELS, 31 * GiB)) == "cb"
    assert ids(choose_victims(MODELS, 51 * GiB)) == "cbd"
    assert ids(choose_victims(MODELS, 500 * GiB)) == "cbda"


def test_models_in_use_go_after_the_idle_ones_and_no_more_than_it_takes() -> None:
    younger = model("y", 40, last_used=9, busy=True)
    assert ids(choose_victims((younger, *MODELS), 65 * GiB, in_use=True)) == "abcd"
    assert ids(choose_victims((younger, *MODELS), 66 * GiB, in_use=True)) == "abcdx"
    assert ids(choose_victims((younger, *MODELS), 500 * GiB, in_use=True)) == "abcdxy"


def test_requests_end_first_on_the_least_recently_used_busy_model_that_has_some() -> None:
    """hard, only busy unpinned models: abort the requests of the least recently used one"""
    younger = model("y", 40, last_used=9, busy=True)
    assert choose_to_end((younger, *MODELS)) == MODELS[4]
    leased_only = model("z", 40, last_used=0, busy=True, requests=0)
    assert choose_to_end((leased_only, younger)) == younger
    assert choose_to_end((leased_only,)) == leased_only
    assert choose_to_end(MODELS[:4]) is None
    assert choose_to_end((model("p", busy=True, pinned=True),)) is None


@given(models=Views, excess=st.integers(0, 100).map(lambda gib: gib * GiB))
def test_victims_are_the_smallest_harm(models: tuple[ModelView, ...], excess: int) -> None:
    """the coldest single idle model that frees enough, else largest first"""
    coldest_first = sorted(filter(idle, models), key=lambda m: (m.last_used, m.id))
    victims = choose_victims(models, excess)
    assert set(victims) <= set(coldest_first)
    freed = sum(m.bytes for m in victims)
    assert freed >= excess or len(victims) == len(coldest_first)
    if len(victims) == 1 and excess <= freed:
        colder = coldest_first[: coldest_first.index(victims[0])]
        assert all(m.bytes < excess for m in colder)
    if len(victims) > 1:
        assert all(m.bytes < excess for m in coldest_first)
        assert freed - min(m.bytes for m in victims) < excess
