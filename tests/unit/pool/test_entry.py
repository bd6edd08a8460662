"""The states of a model: the legal steps, and nothing but them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlxd.engine.messages import ModelInfo
from omlxd.errors import ModelLoadFailed
from omlxd.pool.entry import (
    Absent,
    CancelAsked,
    DrainAsked,
    Draining,
    DrainReason,
    Event,
    Failed,
    GivenUp,
    IllegalStep,
    Kept,
    Loaded,
    LoadFailed,
    Loading,
    Postponed,
    Progressed,
    Queued,
    Ready,
    Started,
    State,
    UnloadBegun,
    Unloaded,
    Unloading,
    Wanted,
    step,
)

FACTS = ModelInfo(10, 100, ())
WHY = ModelLoadFailed("no")
R = DrainReason

STATES: tuple[State, ...] = (
    Absent(),
    Queued(1.0),
    Loading(2.0),
    Ready(FACTS),
    Draining(FACTS, R.MAKE_ROOM, 50.0),
    Unloading(FACTS, R.MAKE_ROOM),
    Failed(WHY, 9.0, 1),
)
EVENTS: tuple[Event, ...] = (
    Wanted(1.0),
    Postponed("later"),
    Started(2.0),
    Progressed(3, 10),
    CancelAsked(),
    Loaded(FACTS),
    LoadFailed(WHY, 9.0, 1),
    GivenUp(),
    DrainAsked(R.REQUESTED, 40.0),
    Kept(),
    UnloadBegun(),
    Unloaded(),
)
LEGAL: dict[tuple[type[Any], type[Any]], type[Any]] = {
    (Absent, Wanted): Queued,
    (Failed, Wanted): Queued,
    (Failed, GivenUp): Absent,
    (Queued, Postponed): Queued,
    (Queued, Started): Loading,
    (Queued, LoadFailed): Failed,
    (Queued, GivenUp): Absent,
    (Loading, Progressed): Loading,
    (Loading, CancelAsked): Loading,
    (Loading, Loaded): Ready,
    (Loading, LoadFailed): Failed,
    (Loading, GivenUp): Absent,
    (Ready, DrainAsked): Draining,
    (Draining, DrainAsked): Draining,
    (Draining, Kept): Ready,
    (Draining, UnloadBegun): Unloading,
    (Unloading, Unloaded): Absent,
}


@pytest.mark.parametrize("state", STATES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_every_step_is_legal_or_refused(state: State, event: Event) -> None:
    expected = LEGAL.get((type(state), type(event)))
    if expected is None:
        with pytest.raises(IllegalStep):
            step(state, event)
    else:
        assert type(step(state, event)) is expected


def test_a_drain_takes_the_sooner_deadline_and_its_reason() -> None:
    draining = Draining(FACTS, R.MAKE_ROOM, 50.0)
    assert step(draining, DrainAsked(R.REQUESTED, 40.0)) == Draining(FACTS, R.REQUESTED, 40.0)
    assert step(draining, DrainAsked(R.PRESSURE, 60.0)) == draining


def test_progress_keeps_a_cancellation() -> None:
    cancelling = step(Loading(1.0), CancelAsked())
    assert step(cancelling, Progressed(1, 2)) == Loading(1.0, 1, 2, cancelling=True)


@given(st.lists(st.sampled_from(EVENTS), max_size=60))
def test_a_loaded_model_leaves_memory_only_through_an_unload(events: list[Event]) -> None:
    """Whatever happens in whatever order: memory is taken by Loaded, given back by Unloaded."""
    state: State = Absent()
    in_memory = False
    for event in events:
        before = state
        try:
            state = step(state, event)
        except IllegalStep:
            assert state is before
            continue
        in_memory = (in_memory or isinstance(event, Loaded)) and not isinstance(event, Unloaded)
        assert in_memory == isinstance(state, Ready | Draining | Unloading)
