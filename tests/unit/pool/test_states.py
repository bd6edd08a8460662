"""The states of a model: the legal steps, and only these."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlxd.engine.messages import ModelInfo
from omlxd.errors import ModelLoadFailed
from omlxd.pool import states
from omlxd.pool.states import (
    Absent,
    Draining,
    DrainReason,
    Failed,
    IllegalStep,
    Loading,
    Queued,
    Ready,
    State,
    Unloading,
)

INFO = ModelInfo(10, 100, ())
WHY = ModelLoadFailed("no")
R = DrainReason

STATES: tuple[State, ...] = (
    Absent(),
    Queued(1.0),
    Loading(2.0),
    Ready(INFO),
    Draining(INFO, R.MAKE_ROOM, 50.0),
    Unloading(INFO, R.MAKE_ROOM),
    Failed(WHY, 9.0, 1),
)
STEPS: dict[str, Callable[[State], State]] = {
    "enqueue": lambda state: states.enqueue(state, 1.0),
    "postpone": lambda state: states.postpone(state, "later"),
    "start_load": lambda state: states.start_load(state, 2.0),
    "progress": lambda state: states.progress(state, 3, 10),
    "cancel_load": states.cancel_load,
    "finish_load": lambda state: states.finish_load(state, INFO),
    "fail_load": lambda state: states.fail_load(state, WHY, 9.0, 1),
    "reset": states.reset,
    "drain": lambda state: states.drain(state, R.REQUESTED, 40.0),
    "keep": states.keep,
    "start_unload": states.start_unload,
    "finish_unload": states.finish_unload,
}
LEGAL: dict[tuple[type[Any], str], type[Any]] = {
    (Absent, "enqueue"): Queued,
    (Failed, "enqueue"): Queued,
    (Failed, "reset"): Absent,
    (Queued, "postpone"): Queued,
    (Queued, "start_load"): Loading,
    (Queued, "fail_load"): Failed,
    (Queued, "reset"): Absent,
    (Loading, "progress"): Loading,
    (Loading, "cancel_load"): Loading,
    (Loading, "finish_load"): Ready,
    (Loading, "fail_load"): Failed,
    (Loading, "reset"): Absent,
    (Ready, "drain"): Draining,
    (Draining, "drain"): Draining,
    (Draining, "keep"): Ready,
    (Draining, "start_unload"): Unloading,
    (Unloading, "finish_unload"): Absent,
}


@pytest.mark.parametrize("state", STATES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("step", STEPS)
def test_every_step_is_legal_or_refused(state: State, step: str) -> None:
    expected = LEGAL.get((type(state), step))
    if expected is None:
        with pytest.raises(IllegalStep, match=f"{step} cannot happen to {type(state).__name__}"):
            STEPS[step](state)
    else:
        assert type(STEPS[step](state)) is expected


def test_a_drain_takes_the_sooner_deadline_and_its_reason() -> None:
    draining = Draining(INFO, R.MAKE_ROOM, 50.0)
    assert states.drain(draining, R.REQUESTED, 40.0) == Draining(INFO, R.REQUESTED, 40.0)
    assert states.drain(draining, R.PRESSURE, 60.0) == draining


def test_progress_keeps_a_cancellation() -> None:
    cancelling = states.cancel_load(Loading(1.0))
    assert states.progress(cancelling, 1, 2) == Loading(1.0, 1, 2, cancelling=True)


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=60))
def test_a_loaded_model_leaves_memory_only_through_an_unload(steps: list[str]) -> None:
    """For any order of steps: a load takes memory, and an unload gives it back."""
    state: State = Absent()
    in_memory = False
    for step in steps:
        before = state
        try:
            state = STEPS[step](state)
        except IllegalStep:
            assert state is before
            continue
        in_memory = (in_memory or step == "finish_load") and step != "finish_unload"
        assert in_memory == isinstance(state, Ready | Draining | Unloading)
