"""The scheduler alone: plans out, hand-made results in; nothing executes anything."""

import math
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from omlxd.backend.plan import (
    EnteringSequence,
    Prefilled,
    SequenceState,
    StepPlan,
    StepResult,
    step_failure,
)
from omlxd.backend.sequence import FinishReason, NewToken
from omlxd.engine.messages import Event, RequestEnded, Stepped
from omlxd.engine.options import EngineOptions
from omlxd.engine.scheduler import Scheduler
from omlxd.errors import GenerationFailed, InvalidRequest, MemoryPressureAborted, ShuttingDown
from omlxd.policy.ceiling import Limits
from omlxd.policy.chunking import FIRST_CHUNK, SMALLEST_CHUNK, StepBudget
from tests.support.fake_backend import sequence

BUDGET = StepBudget(1.0, SMALLEST_CHUNK)
PAUSED = Limits(generation=1, admission_paused=True)
LAST = NewToken(9, finish=FinishReason.LENGTH)


def scheduler(limits: Limits | None = None, **options: int) -> Scheduler:
    return Scheduler("m", EngineOptions(**options), limits or Limits())


def submit(under_test: Scheduler, *lengths: int) -> None:
    """Requests r0, r1, ... with prompts of so many tokens."""
    for n, length in enumerate(lengths):
        under_test.submit(EnteringSequence(sequence(f"r{n}", [1] * length)))


def done(under_test: Scheduler, plan: StepPlan, *, seconds: float = 0.125) -> None:
    """Report the plan's whole prefill as done, with one token for each decoding sequence."""
    totals = {s.spec.id: s.prefill_tokens for s in plan.enter}
    prefilled = tuple(Prefilled(i, n, totals.get(i, n)) for i, n in plan.prefill)
    tokens = tuple((i, NewToken(7)) for i in plan.decode)
    under_test.update(StepResult(prefilled, tokens, left=plan.leave), seconds)


def decoding(*lengths: int, **options: Any) -> Scheduler:
    """A scheduler whose requests r0, r1, ... all decode."""
    under_test = scheduler(**options)
    submit(under_test, *lengths)
    done(under_test, under_test.schedule(BUDGET))
    assert under_test.decoding == len(lengths)
    return under_test


def entered(plan: StepPlan) -> list[str]:
    return [s.spec.id for s in plan.enter]


def ended(events: Sequence[Event]) -> dict[str, object]:
    return {e.request_id: e.error for e in events if isinstance(e, RequestEnded)}


def counts(events: Sequence[Event]) -> tuple[int, int, int]:
    """(running, waiting, bytes of cache) of the last event."""
    last = events[-1]
    assert isinstance(last, Stepped)
    return last.running, last.waiting, last.cache_bytes


# The plan


def test_a_plan_and_a_result_are_plain_data() -> None:
    """They can be sent to another process, and arrive there unchanged."""
    state = SequenceState("key", 2, 4096)
    plan = StepPlan(
        save=(("a", "key"),),
        leave=("a",),
        forget=("old",),
        enter=(EnteringSequence(sequence("b", (1, 2, 3)), (4, 5), state),),
        decode=("c",),
        prefill=(("b", 3),),
    )
    result = StepResult(tokens=(("c", NewToken(5, -0.5, ((5, -0.5),))),), cache_bytes=7)
    assert pickle.loads(pickle.dumps((plan, result))) == (plan, result)
    failed = StepResult(failed=(("b", InvalidRequest("no", param="top_k")),))
    ((_, error),) = pickle.loads(pickle.dumps(failed)).failed
    assert (type(error), error.message, error.param) == (InvalidRequest, "no", "top_k")


def test_the_same_requests_give_the_same_plans() -> None:
    plans = []
    for _ in range(2):
        under_test = scheduler()
        submit(under_test, 50, 60)
        plans.append(under_test.schedule(BUDGET))
    assert plans[0] == plans[1]
    assert plans[0] is not plans[1]


def test_a_request_enters_prefills_in_chunks_decodes_and_finishes() -> None:
    under_test = scheduler()
    submit(under_test, 200)
    plan = under_test.schedule(BUDGET)
    assert (entered(plan), plan.prefill, plan.decode) == (["r0"], (("r0", FIRST_CHUNK),), ())
    events = under_test.update(StepResult((Prefilled("r0", 128, 200),), cache_bytes=5), 0.1)
    assert counts(events) == (1, 0, 5)
    plan = under_test.schedule(BUDGET)
    assert (plan.enter, plan.prefill, plan.decode) == ((), (("r0", 72),), ())
    # The last token of the prompt may take a step of its own.
    under_test.update(StepResult((Prefilled("r0", 199, 200),)), 0.1)
    assert under_test.schedule(BUDGET).prefill == (("r0", 1),)
    under_test.update(StepResult((Prefilled("r0", 200, 200),)), 0.1)
    assert under_test.schedule(BUDGET) == StepPlan(decode=("r0",))
    events = under_test.update(StepResult(tokens=(("r0", NewToken(5)),)), 0.1)
    assert [e.tokens for e in events if isinstance(e, Stepped)] == [(("r0", NewToken(5)),)]
    assert under_test.has_work
    events = under_test.update(StepResult(tokens=(("r0", LAST),)), 0.1)
    assert counts(events) == (0, 0, 0)
    assert (under_test.has_work, under_test.batched) == (False, 0)


def test_while_only_the_same_sequences_decode_the_plan_is_the_same_object() -> None:
    under_test = decoding(3, 3)
    plan = under_test.schedule(BUDGET)
    done(under_test, plan)
    assert under_test.schedule(BUDGET) is plan
    under_test.update(StepResult(tokens=(("r0", LAST), ("r1", NewToken(1)))), 0.1)
    assert under_test.schedule(BUDGET) == StepPlan(decode=("r1",))


def test_a_sequence_with_a_state_prefills_only_the_rest() -> None:
    under_test = scheduler()
    entering = EnteringSequence(sequence("r", [1] * 50), (7, 8, 9), SequenceState("k", 40, 1))
    under_test.submit(entering)
    plan = under_test.schedule(BUDGET)
    assert plan.enter == (entering,)
    assert plan.prefill == (("r", 13),)
    under_test.update(StepResult((Prefilled("r", 53, 53, 40),)), 0.1)
    assert under_test.schedule(BUDGET).decode == ("r",)


# Admission


def test_so_many_run_at_once_and_the_others_wait_in_order() -> None:
    under_test = scheduler(max_concurrent=2)
    submit(under_test, 3, 3, 3, 3)
    plan = under_test.schedule(BUDGET)
    assert entered(plan) == ["r0", "r1"]
    assert under_test.prefilling == 2
    done(under_test, plan)
    assert entered(under_test.schedule(BUDGET)) == []
    events = under_test.update(StepResult(tokens=(("r0", LAST), ("r1", LAST))), 0.1)
    assert counts(events) == (0, 2, 0)
    assert under_test.prefilling == 2
    assert entered(under_test.schedule(BUDGET)) == ["r2", "r3"]


def test_only_so_many_prompts_prefill_at_once_and_the_next_takes_a_free_place() -> None:
    under_test = scheduler(max_concurrent=4, max_prefills=2)
    submit(under_test, 300, 300, 300)
    plan = under_test.schedule(BUDGET)
    assert entered(plan) == ["r0", "r1", "r2"]
    assert [i for i, _ in plan.prefill] == ["r0", "r1"]
    under_test.update(StepResult((Prefilled("r0", 300, 300), Prefilled("r1", 64, 300))), 0.1)
    assert [i for i, _ in under_test.schedule(BUDGET).prefill] == ["r1", "r2"]


def test_a_paused_admission_takes_one_request_of_an_idle_model() -> None:
    under_test = scheduler(PAUSED)
    submit(under_test, 3, 3)
    assert under_test.prefilling == 1
    plan = under_test.schedule(BUDGET)
    assert entered(plan) == ["r0"]
    done(under_test, plan)
    assert under_test.schedule(BUDGET) == StepPlan(decode=("r0",))
    under_test.limits = Limits(generation=2)
    assert entered(under_test.schedule(BUDGET)) == ["r1"]


# Chunks and pace


def test_prompts_share_the_chunk_and_a_short_one_takes_no_more_than_it_has() -> None:
    under_test = scheduler()
    submit(under_test, 500, 10, 500, 500)
    shares = dict(under_test.schedule(BUDGET).prefill)
    assert shares == {"r0": 32, "r1": 10, "r2": 32, "r3": 32}


def test_chunks_follow_the_pace_of_the_steps() -> None:
    under_test = scheduler(prefill_chunk=2048)
    submit(under_test, 10_000)
    assert under_test.prefill_seconds(1000) == math.inf
    under_test.schedule(BUDGET)
    under_test.update(StepResult((Prefilled("r0", 128, 10_000),)), 0.128)
    assert under_test.prefill_seconds(1000) == pytest.approx(1.0)
    assert under_test.schedule(StepBudget(0.3, SMALLEST_CHUNK)).prefill == (("r0", 300),)
    assert under_test.schedule(StepBudget(0.001, SMALLEST_CHUNK)).prefill == (("r0", 32),)
    assert under_test.schedule(StepBudget(60.0, SMALLEST_CHUNK)).prefill == (("r0", 512),)


def test_what_decoding_takes_is_taken_off_the_time_for_a_chunk() -> None:
    under_test = decoding(3)
    under_test.update(StepResult(tokens=(("r0", NewToken(1)),)), 0.125)
    under_test.submit(EnteringSequence(sequence("long", [1] * 10_000)))
    plan = under_test.schedule(BUDGET)
    assert (plan.decode, plan.prefill) == (("r0",), (("long", FIRST_CHUNK),))
    under_test.update(
        StepResult((Prefilled("long", 128, 10_000),), (("r0", NewToken(1)),)), 0.125 + 0.125
    )
    assert under_test.schedule(StepBudget(0.375, SMALLEST_CHUNK)).prefill == (("long", 256),)


def test_tokens_out_of_a_state_say_nothing_about_the_pace() -> None:
    under_test = scheduler()
    under_test.submit(EnteringSequence(sequence("r", [1] * 1000), (), SequenceState("k", 800, 1)))
    under_test.schedule(BUDGET)
    under_test.update(StepResult((Prefilled("r", 900, 1000, 800),)), 0.1)
    assert under_test.prefill_seconds(1000) == pytest.approx(1.0)


# Ends


def test_a_waiting_request_that_is_cancelled_ends_at_once() -> None:
    under_test = scheduler(max_concurrent=1)
    submit(under_test, 3, 3)
    done(under_test, under_test.schedule(BUDGET))
    error = MemoryPressureAborted("no room")
    events = under_test.cancel("r1", error)
    assert ended(events) == {"r1": error}
    assert counts(events) == (1, 0, 0)
    assert under_test.leaving == 0


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_running_request_that_is_cancelled_ends_when_it_has_left(phase: str) -> None:
    under_test = scheduler()
    submit(under_test, 500, 3)
    plan = under_test.schedule(BUDGET)
    if phase == "decode":
        done(under_test, plan)
    assert under_test.cancel("r0", None) == ()
    assert under_test.cancel("r0", ShuttingDown("again")) == ()
    assert (under_test.leaving, under_test.batched) == (1, 2)
    removal = under_test.schedule_removal()
    assert removal == StepPlan(leave=("r0",))
    events = under_test.update(StepResult(left=("r0",), cache_bytes=3), 0.01)
    assert ended(events) == {"r0": None}
    assert counts(events) == (1, 0, 3)
    assert (under_test.leaving, under_test.batched) == (0, 1)
    plan = under_test.schedule(BUDGET)
    assert {*plan.decode, *(i for i, _ in plan.prefill)} == {"r1"}


def test_a_step_takes_cancelled_sequences_out_before_others_take_their_places() -> None:
    under_test = decoding(3, 3, max_concurrent=2)
    under_test.submit(EnteringSequence(sequence("next")))
    error = MemoryPressureAborted("no room")
    under_test.cancel("r1", error)
    plan = under_test.schedule(BUDGET)
    assert plan == StepPlan(
        leave=("r1",),
        enter=(EnteringSequence(sequence("next")),),
        decode=("r0",),
        prefill=(("next", 3),),
    )
    result = StepResult((Prefilled("next", 3, 3),), (("r0", NewToken(1)),), left=("r1",))
    assert ended(under_test.update(result, 0.1)) == {"r1": error}
    assert under_test.schedule(BUDGET) == StepPlan(decode=("r0", "next"))


def test_an_unknown_request_can_be_cancelled() -> None:
    under_test = decoding(3)
    assert under_test.cancel("unknown", None) == ()
    assert under_test.schedule(BUDGET) == StepPlan(decode=("r0",))


def test_requests_that_fail_alone_leave_the_others_running() -> None:
    under_test = decoding(3, 3)
    under_test.submit(EnteringSequence(sequence("bad")))
    under_test.schedule(BUDGET)
    failed = (("bad", InvalidRequest("no")), ("r1", GenerationFailed("sampling")))
    events = under_test.update(StepResult(tokens=(("r0", NewToken(1)),), failed=failed), 0.1)
    assert ended(events) == dict(failed)
    assert counts(events) == (1, 0, 0)
    assert under_test.schedule(BUDGET) == StepPlan(decode=("r0",))


def test_a_lost_step_ends_what_is_in_the_batch_and_the_waiting_begin_anew() -> None:
    under_test = scheduler(max_concurrent=3)
    submit(under_test, 3, 3, 3, 3)
    done(under_test, under_test.schedule(BUDGET))
    under_test.cancel("r1", None)
    lost = step_failure(RuntimeError("injected"))
    assert isinstance(lost, GenerationFailed)
    assert "injected" in lost.message
    events = under_test.update(StepResult(lost=lost, cache_bytes=9), 0.1)
    errors = ended(events)
    assert list(errors) == ["r0", "r2", "r1"]
    assert errors["r1"] is None
    assert [type(errors[i]) for i in ("r0", "r2")] == [GenerationFailed] * 2
    assert errors["r0"] is not errors["r2"]
    assert counts(events) == (0, 1, 0)
    assert under_test.batched == 0
    assert entered(under_test.schedule(BUDGET)) == ["r3"]


def test_the_end_of_all_ends_each_request_once() -> None:
    under_test = scheduler(max_concurrent=2)
    submit(under_test, 3, 500, 3)
    under_test.schedule(BUDGET)
    under_test.update(StepResult((Prefilled("r0", 3, 3), Prefilled("r1", 64, 500))), 0.1)
    own = MemoryPressureAborted("no room")
    under_test.cancel("r1", own)
    events = under_test.end_all(ShuttingDown("over"))
    assert len(events) == 3
    errors = ended(events)
    assert errors["r1"] is own
    assert [type(errors[i]) for i in ("r0", "r2")] == [ShuttingDown] * 2
    assert (under_test.has_work, under_test.batched) == (False, 0)


def test_a_report_after_a_submit_tells_the_cache_of_the_latest_step() -> None:
    under_test = decoding(3)
    under_test.update(StepResult(tokens=(("r0", NewToken(1)),), cache_bytes=77), 0.1)
    report = under_test.submit(EnteringSequence(sequence("r1")))
    assert (report.running, report.waiting, report.cache_bytes) == (1, 1, 77)
