"""Models that do not fit together: which wait, which leave, which are refused."""

import asyncio
import random
from typing import Any

import pytest
from structlog.testing import capture_logs

from omlxd.backend.sequence import FinishReason, NewToken
from omlxd.errors import (
    InsufficientMemory,
    MemoryPressure,
    MemoryPressureAborted,
    ModelLoadFailed,
    ModelTooLarge,
)
from omlxd.model_settings.options import ModelSettings
from omlxd.policy.actions import (
    AbortLoads,
    AbortRequests,
    DropImageCache,
    EvictModel,
    IdleReclaim,
    MarkPendingUnload,
    ReclaimBufferCache,
)
from omlxd.policy.readings import MemoryReading, OsPressure
from omlxd.pool.options import PoolOptions
from tests.support.fake_generation import a_sequence
from tests.unit.pool.fakes import FakeMachine, House, MiB, a_model, ceilings, settle

ROOM = 160 * MiB
"""Bytes; enough for one of two models of 100 MiB."""


def two_models(**more: Any) -> House:
    return House(
        a_model("a", size=100 * MiB),
        a_model("b", size=100 * MiB),
        machine=FakeMachine(ROOM),
        **more,
    )


async def test_an_idle_model_makes_room_for_another() -> None:
    house = two_models()
    await house.pool.load("a")
    await house.pool.load("b")
    assert house.engine.resident == {"b"}
    assert house.engine.most_resident == 1


async def test_a_b_a_are_all_answered_in_order() -> None:
    """T07: only one of two fits; A's answer completes, B waits, loads, answers; no refusal."""
    house = two_models()
    first = house.use("a", "1")
    await house.time.pass_by(6)
    second = house.use("b", "2")
    await settle()
    assert (first.lease is not None, second.lease) == (True, None)
    status = house.status("b")
    assert (status.state, status.position, status.detail) == ("queued", 1, "waits for a, in use")
    third = house.use("a", "3")
    await settle()
    assert third.lease is not None
    await first.done()
    await third.done()
    await settle()
    assert second.lease is not None
    assert house.engine.aborts == []
    await second.done()


async def test_a_stream_of_requests_for_the_resident_model_starves_nobody() -> None:
    house = two_models(options=PoolOptions(drain_after=30.0))
    current = house.use("a", "0")
    await settle()
    waiting = house.use("b", "b")
    number = 0
    for number in range(1, 30):
        following = house.use("a", f"{number}")
        await house.time.pass_by(1)
        assert following.lease is not None
        await current.done()
        current = following
    await house.time.pass_by(1)
    assert house.state("a") == "draining"
    late = house.use("a", "late")
    await house.time.pass_by(10)
    assert (late.lease, waiting.lease) == (None, None)
    assert house.engine.aborts == [], "a running answer is never cut for another's sake"
    await current.done()
    await settle()
    assert waiting.lease is not None
    await waiting.done()
    await settle()
    assert late.lease is not None
    await late.done()


async def test_a_model_just_loaded_may_serve_before_it_must_make_room() -> None:
    house = two_models(options=PoolOptions(drain_after=30.0))
    first = house.use("a", "1")
    await settle()
    second = house.use("b", "2")
    await house.time.pass_by(30)
    back = house.use("a", "3")
    await house.time.pass_by(50)
    await first.done()
    await settle()
    assert second.lease is not None
    await house.time.pass_by(29)
    assert house.state("b") == "ready"
    await house.time.pass_by(1)
    assert house.state("b") == "draining"
    await second.done()
    await settle()
    assert back.lease is not None
    await back.done()


async def test_a_drain_is_called_off_when_the_one_that_waits_gives_up() -> None:
    house = two_models()
    first = house.use("a", "1")
    await settle()
    second = house.use("b", "2")
    await house.time.pass_by(30)
    late = house.use("a", "3")
    await settle()
    assert house.state("a") == "draining"
    second.task.cancel()
    await settle()
    assert house.state("a") == "ready"
    assert late.lease is not None
    assert house.state("b") == "absent"
    await first.done()
    await late.done()


async def test_a_wait_ends_at_its_deadline_with_its_reason() -> None:
    house = two_models(options=PoolOptions(queue_deadline=300.0, drain_after=400.0))
    first = house.use("a", "1")
    await settle()
    second = house.use("b", "2")
    await house.time.pass_by(299)
    assert second.error is None
    await house.time.pass_by(1)
    assert isinstance(second.error, MemoryPressure)
    assert "waits for a, in use" in second.error.message
    assert second.error.retry_after is not None
    assert house.state("b") == "absent"
    await first.done()


async def test_a_wait_that_ends_at_its_deadline_names_its_numbers() -> None:
    """Each names usage, the estimate, the limit, the mark that tripped, the binding term and its
    remedy."""
    house = House(
        *(a_model(name, size=100 * MiB) for name in "abc"),
        a_model("small", size=10 * MiB),
        machine=FakeMachine(ROOM),
        options=PoolOptions(queue_deadline=10.0),
    )
    first = house.use("a", "1")
    await settle()
    # Behind the head of the queue nothing is planned, but the error has the numbers anyway.
    second, third = house.use("b", "2"), house.use("c", "3")
    await house.time.pass_by(10)
    for use in (second, third):
        assert use.error.details == {
            "waited_seconds": 10.0,
            "usage_bytes": 100 * MiB,
            "estimate_bytes": 105 * MiB,
            "limit_bytes": 152 * MiB,
            "mark": "hard",
            "ceiling_bytes": 160 * MiB,
            "binding": "static",
            "remedy": use.error.details["remedy"],
        }
        for part in ("105.0MB", "100.0MB of 152.0MB", "hard mark", "static"):
            assert part in use.error.message
        assert use.error.message.endswith(use.error.details["remedy"])
    machine = house.machine
    assert machine is not None
    machine.paused = True
    critical = MemoryReading(0.0, 160 * MiB, os_pressure=OsPressure.CRITICAL)
    for others, reading, mark, limit in (
        (50, None, "soft", 144 * MiB),
        (42, None, "resume", 144 * MiB - int(160 * MiB * 0.02)),
        (0, critical, "os_pressure", None),
        # Memory came free after the guard's last look.
        (0, None, "hard", 152 * MiB),
    ):
        machine.others, machine.reading = others * MiB, reading
        use = house.use("small", mark)
        await house.time.pass_by(10)
        assert (use.error.details["mark"], use.error.details["limit_bytes"]) == (mark, limit)
        assert use.error.message.endswith(use.error.details["remedy"])
    await first.done()


async def test_a_model_that_can_never_fit_is_refused_at_once() -> None:
    house = House(a_model("huge", size=200 * MiB), machine=FakeMachine(ROOM))
    use = house.use("huge")
    await settle()
    error = use.error
    assert isinstance(error, ModelTooLarge)
    assert error.retry_after is None
    for part in ("210.0MB", "152.0MB", "160.0MB", "hard", "static"):
        assert part in error.message
    assert error.details["limit_bytes"] == int(ROOM * 0.95)
    assert error.details["binding"]
    assert error.details["remedy"]
    assert house.engine.tickets == []
    assert house.state("huge") == "absent"


async def test_a_pinned_model_never_makes_room() -> None:
    house = two_models(options=PoolOptions(settings={"a": ModelSettings(pinned=True)}))
    await settle()
    use = house.use("b")
    await settle()
    assert isinstance(use.error, InsufficientMemory)
    assert "pinned" in use.error.message
    assert house.engine.resident == {"a"}


async def test_a_preload_without_room_is_tried_again_and_a_request_is_judged_anew() -> None:
    options = PoolOptions(settings={"a": ModelSettings(pinned=True)}, retry_first=10.0)
    machine = FakeMachine(ROOM)
    machine.others = 100 * MiB
    house = House(options=options, machine=machine)
    house.show(a_model("a", size=100 * MiB))
    house.engine.sizes["a"] = 100 * MiB
    await settle()
    status = house.status("a")
    assert (status.state, status.problem.code) == ("failed", "insufficient_memory")
    use = house.use("a")
    await settle()
    assert isinstance(use.error, InsufficientMemory)
    machine.others = 0
    use = house.use("a")
    await settle()
    assert use.lease is not None
    await use.done()


async def test_two_loads_are_never_promised_the_same_memory() -> None:
    house = two_models(auto=False)
    first, second = house.use("a", "1"), house.use("b", "2")
    await settle()
    assert [ticket.model_id for ticket in house.engine.tickets] == ["a"]
    assert house.status("b").detail == "memory is promised to other loads"
    house.engine.tickets[0].progress(60 * MiB)
    await house.time.pass_by(5)
    assert len(house.engine.tickets) == 1
    first.task.cancel()
    await settle()
    house.engine.tickets[0].stop()
    await settle()
    assert [ticket.model_id for ticket in house.engine.tickets] == ["a", "b"]
    house.engine.tickets[1].finish()
    await settle()
    await second.done()


async def test_two_that_fit_together_are_loaded_together() -> None:
    house = House(
        a_model("a", size=50 * MiB),
        a_model("b", size=50 * MiB),
        machine=FakeMachine(ROOM),
        auto=False,
    )
    first, second = house.use("a", "1"), house.use("b", "2")
    await settle()
    assert len(house.engine.tickets) == 2
    for ticket in house.engine.tickets:
        ticket.finish()
    await settle()
    await first.done()
    await second.done()


async def test_the_line_is_strictly_in_order() -> None:
    """A small model that would fit does not overtake the one that waits."""
    house = House(
        a_model("a", size=100 * MiB),
        a_model("big", size=120 * MiB),
        a_model("small", size=10 * MiB),
        machine=FakeMachine(ROOM),
    )
    first = house.use("a", "1")
    await settle()
    second, third = house.use("big", "2"), house.use("small", "3")
    await settle()
    assert [house.status(name).position for name in ("big", "small")] == [1, 2]
    assert third.lease is None
    await first.done()
    await settle()
    assert second.lease is not None
    assert third.lease is not None
    await second.done()
    await third.done()


async def test_the_next_load_waits_until_the_freed_memory_shows() -> None:
    """T11: freed bytes are measured, not assumed."""
    house = two_models(options=PoolOptions(settle_limit=5.0))
    machine = house.machine
    assert machine is not None
    await house.pool.load("a")
    house.engine.on_unload = machine.keep
    use = house.use("b")
    await house.time.pass_by(1)
    assert house.state("a") == "unloading"
    assert use.lease is None
    machine.residue = 0
    await house.time.pass_by(0.2)
    assert use.lease is not None
    await use.done()


async def test_memory_that_never_shows_as_free_is_waited_for_only_so_long() -> None:
    house = two_models(options=PoolOptions(settle_limit=5.0))
    machine = house.machine
    assert machine is not None
    await house.pool.load("a")
    house.engine.on_unload = lambda freed: machine.keep(70 * MiB)
    unloading = asyncio.create_task(house.pool.unload("a"))
    await house.time.pass_by(4.5)
    assert not unloading.done()
    await house.time.pass_by(1)
    assert await unloading == 30 * MiB


async def test_the_process_s_own_ups_and_downs_hold_up_no_load() -> None:
    """For a small model a few megabytes are more than the share that must show."""
    house = two_models(options=PoolOptions(settle_limit=5.0))
    machine = house.machine
    assert machine is not None
    await house.pool.load("a")
    house.engine.on_unload = lambda freed: machine.keep(8 * MiB)
    unloading = asyncio.create_task(house.pool.unload("a"))
    await settle()
    assert unloading.done()
    assert await unloading == 92 * MiB


async def test_what_another_model_takes_meanwhile_does_not_hide_what_came_free() -> None:
    house = House(
        a_model("a", size=100 * MiB),
        a_model("b", size=100 * MiB),
        machine=FakeMachine(400 * MiB),
        options=PoolOptions(settle_limit=5.0),
        auto=False,
    )
    loading = asyncio.create_task(house.pool.load("a"))
    await settle()
    house.engine.tickets[0].finish()
    await loading
    use = house.use("b")
    await settle()
    unloading = asyncio.create_task(house.pool.unload("a"))
    await settle()
    house.engine.tickets[1].progress(90 * MiB)
    house.engine.unloads[0][1].set_result(100 * MiB)
    await settle()
    assert unloading.done()
    assert await unloading == 100 * MiB
    house.engine.tickets[1].finish()
    await settle()
    await use.done()


async def test_a_model_in_use_that_drains_is_not_taken_for_residue() -> None:
    """T07: memory of other parts of the process counts while the old model is still loaded."""
    house = two_models(options=PoolOptions(drain_after=5.0))
    machine = house.machine
    assert machine is not None
    machine.ceilings = ceilings(300 * MiB)
    machine.residue = 90 * MiB
    first = house.use("a", "1")
    await settle()
    second = house.use("b", "2")
    await house.time.pass_by(20)
    assert house.state("a") == "draining"
    assert second.lease is None
    assert house.engine.loads_of("b") == 0
    await first.done()
    await house.time.pass_by(1)
    assert second.lease is not None
    await second.done()


async def test_residue_of_what_was_unloaded_for_a_load_does_not_refuse_it() -> None:
    """The footprint still includes the old model, but the allocator does not."""
    house = two_models(options=PoolOptions(settle_limit=5.0))
    machine = house.machine
    assert machine is not None
    await house.pool.load("a")
    house.engine.on_unload = machine.keep
    use = house.use("b")
    await house.time.pass_by(6)
    assert machine.usage() > ROOM
    assert use.lease is not None
    await use.done()


async def test_room_made_for_a_request_that_left_says_nothing_of_the_next() -> None:
    """Only the load for which a model was unloaded may ignore the footprint."""
    house = two_models(auto=False)
    machine = house.machine
    assert machine is not None
    resident = house.use("a")
    await settle()
    house.engine.tickets[0].finish()
    await settle()
    await resident.done()
    leaver = house.use("b", "1")
    await settle()
    leaver.task.cancel()
    await settle()
    house.engine.unloads[0][1].set_result(100 * MiB)
    await house.time.pass_by(1)
    machine.residue = 100 * MiB
    late = house.use("b", "2")
    await house.time.pass_by(5)
    assert isinstance(late.error, InsufficientMemory)


async def test_no_more_models_are_drained_than_it_takes() -> None:
    house = House(
        a_model("a", size=60 * MiB),
        a_model("b", size=60 * MiB),
        a_model("c", size=60 * MiB),
        machine=FakeMachine(ROOM),
    )
    using_a = [house.use("a", "1"), house.use("a", "2")]
    await house.time.pass_by(1)
    using_c = house.use("c", "3")
    await settle()
    waiting = house.use("b", "4")
    await house.time.pass_by(40)
    assert (house.state("a"), house.state("c")) == ("draining", "ready")
    # Now "c" is the least recently used model.
    await using_a[0].done()
    await house.time.pass_by(10)
    assert (house.state("a"), house.state("c")) == ("draining", "ready")
    await using_a[1].done()
    await settle()
    assert waiting.lease is not None
    await waiting.done()
    await using_c.done()


async def test_an_unload_gives_the_heap_back() -> None:
    calls: list[str] = []
    house = two_models(release_memory=lambda: calls.append("trim"))
    await house.pool.load("a")
    assert await house.pool.unload("a") == 100 * MiB
    assert calls == ["trim"]
    assert house.engine.samples == 1


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_a_load_that_ends_without_a_model_gives_its_memory_back_first(how: str) -> None:
    """The heap is trimmed. Until readings show it, the model is Loading with its reservation."""
    calls: list[str] = []
    house = two_models(auto=False, release_memory=lambda: calls.append("trim"))
    machine = house.machine
    assert machine is not None
    use = house.use("a")
    await settle()
    (ticket,) = house.engine.tickets
    ticket.progress(90 * MiB)
    machine.residue = 90 * MiB
    if how == "cancelled":
        use.task.cancel()
        await settle()
        ticket.stop()
    else:
        ticket.fail(ModelLoadFailed("no"))
    await house.time.pass_by(1)
    await asyncio.to_thread(lambda: None)
    await house.time.pass_by(1)
    assert calls == ["trim"]
    assert house.state("a") == "loading"
    assert house.status("a").promised_bytes > 0
    machine.residue = 0
    await house.time.pass_by(0.5)
    assert house.state("a") == ("absent" if how == "cancelled" else "failed")
    assert house.status("a").promised_bytes == 0


async def test_what_a_load_really_took_is_known_afterwards() -> None:
    house = two_models()
    house.engine.sizes["a"] = 90 * MiB
    assert house.status("a").measured_bytes is None
    await house.pool.load("a")
    assert house.status("a").measured_bytes == 90 * MiB
    await house.pool.unload("a")
    assert house.status("a").measured_bytes == 90 * MiB
    house.show(a_model("a", size=100 * MiB, fingerprint="2"), a_model("b"))
    assert house.status("a").measured_bytes is None


async def test_paused_admission_holds_loads_back_until_it_resumes() -> None:
    house = House(a_model("a"), a_model("b"), machine=FakeMachine(ROOM))
    machine = house.machine
    assert machine is not None
    first = house.use("a", "1")
    await settle()
    machine.paused = True
    second = house.use("b", "2")
    await house.time.pass_by(10)
    assert second.lease is None
    assert house.status("b").state == "queued"
    machine.paused = False
    await house.time.pass_by(1)
    assert second.lease is not None
    await first.done()
    await second.done()


async def test_the_guard_unloads_an_idle_model_and_hears_what_came_free() -> None:
    house = two_models()
    await house.pool.load("a")
    outcome = await house.pool.apply(EvictModel("a", 100 * MiB))
    assert (outcome.accepted, outcome.freed) == (True, 100 * MiB)


async def test_the_guard_never_unloads_a_model_in_use_or_pinned() -> None:
    house = House(
        a_model("a"), a_model("p"), options=PoolOptions(settings={"p": ModelSettings(pinned=True)})
    )
    use = house.use("a")
    await settle()
    for name in ("a", "p", "unknown"):
        assert not (await house.pool.apply(EvictModel(name, 1))).accepted
    assert house.engine.resident == {"a", "p"}
    await use.done()


async def test_an_unload_that_takes_longer_than_a_poll_is_in_flight() -> None:
    house = House(a_model("a"), auto=False)
    use = house.use("a")
    await settle()
    house.engine.tickets[0].finish()
    await settle()
    await use.done()
    applying = asyncio.create_task(house.pool.apply(EvictModel("a", 1)))
    await house.time.pass_by(1)
    outcome = await applying
    assert (outcome.accepted, outcome.in_flight, outcome.freed) == (True, True, None)
    assert house.pool.views()[0].unloading
    again = asyncio.create_task(house.pool.apply(EvictModel("a", 1)))
    await settle()
    house.engine.unloads[0][1].set_result(5)
    assert (await again).freed == 5
    assert len(house.engine.unloads) == 1


async def test_a_model_pinned_since_the_decision_is_not_marked_for_unload() -> None:
    house = House(a_model("p"), options=PoolOptions(settings={"p": ModelSettings(pinned=True)}))
    use = house.use("p")
    await settle()
    assert not (await house.pool.apply(MarkPendingUnload("p"))).accepted
    assert not house.pool.views()[0].pending_unload
    await use.done()


async def test_an_answer_that_is_only_unread_is_no_request_that_could_be_ended() -> None:
    """A stalled client keeps its lease; the guard must see that it has no request to abort."""
    house = House(a_model("a"))
    use = house.use("a")
    await settle()
    generation = use.lease.submit(a_sequence())
    assert (house.pool.views()[0].busy, house.pool.views()[0].requests) == (True, 1)
    generation.token(NewToken(0, finish=FinishReason.STOP))
    assert (house.pool.views()[0].busy, house.pool.views()[0].requests) == (True, 0)
    await use.done()


async def test_a_pending_unload_always_clears() -> None:
    house = House(a_model("a"), options=PoolOptions(drain_deadline=60.0))
    use = house.use("a")
    await settle()
    outcome = await house.pool.apply(MarkPendingUnload("a"))
    assert outcome.accepted
    assert house.pool.views()[0].pending_unload
    await house.time.pass_by(60)
    assert house.state("a") == "absent"
    await use.done()


async def test_a_drain_to_make_room_gets_a_deadline_in_an_emergency() -> None:
    """mark a pending unload, so the mark always clears"""
    house = two_models(options=PoolOptions(drain_after=5.0, drain_deadline=60.0))
    first = house.use("a", "1")
    await settle()
    second = house.use("b", "2")
    await house.time.pass_by(100)
    assert house.state("a") == "draining"
    with capture_logs() as logs:
        taken = []
        for _ in range(3):
            taken.append((await house.pool.apply(MarkPendingUnload("a"))).accepted)
            await house.time.pass_by(15)
    assert taken == [True, False, False], "told once"
    assert [log["reason"] for log in logs if log["event"] == "model_draining"] == ["pressure"]
    await house.time.pass_by(14)
    assert house.state("a") == "draining"
    await house.time.pass_by(1)
    assert house.state("a") == "absent"
    assert second.lease is not None
    await first.done()
    await second.done()


async def stopped_by_the_guard(house: House, name: str = "a") -> None:
    """The guard stops its load in progress, until the load has ended."""
    await house.pool.apply(AbortLoads((name,)))
    house.engine.tickets[-1].stop()
    await settle()


async def test_loads_stopped_by_the_guard_tell_their_waiters_why() -> None:
    """Each names usage, the estimate, the limit, the mark that tripped, the binding term and its
    remedy."""
    house = House(a_model("a"), auto=False)
    use = house.use("a")
    await settle()
    outcome = await house.pool.apply(
        AbortLoads(("a", "unknown")),
        MemoryPressureAborted("hard", retry_after=3.0, mark="hard"),
    )
    assert outcome.accepted
    assert house.pool.views()[0].load_aborting
    assert not (await house.pool.apply(AbortLoads(("a",)))).accepted
    await settle()
    assert isinstance(use.error, MemoryPressureAborted)
    assert (use.error.message, use.error.details) == ("hard", {"mark": "hard"})
    assert use.error.retry_after == 3.0


async def test_who_asks_for_a_load_that_the_guard_stopped_waits_in_the_queue() -> None:
    """ "does not fit now: waits in the queue": the model is not broken. Even after many stops,
    the next request is answered as soon as the pressure is over."""
    machine = FakeMachine(ROOM)
    house = House(a_model("p"), a_model("a"), machine=machine, auto=False)
    first = house.use("p")
    await settle()
    house.engine.tickets[0].finish()
    await settle()
    for loads in range(1, 5):
        use = house.use("a")
        await settle()
        assert house.engine.loads_of("a") == loads
        await house.pool.apply(AbortLoads(("a",)))
        await settle()
        assert isinstance(use.error, MemoryPressureAborted)
        machine.paused = True
        late = house.use("a")
        house.engine.tickets[-1].stop()
        await house.time.pass_by(100)
        # It came after the stop and does not get its error: only pressure makes it wait.
        assert (house.state("a"), late.error) == ("queued", None)
        late.task.cancel()
        await settle()
        assert house.state("a") == "absent"
        machine.paused = False
    last = house.use("a")
    await settle()
    house.engine.tickets[-1].finish()
    await settle()
    assert last.lease is not None
    await last.done()
    await first.done()


async def test_a_stopped_load_begins_no_sooner_than_the_guard_can_look_again() -> None:
    """No endless loop of load and stop while requests keep coming and room seems to be free."""
    house = House(a_model("a"), machine=FakeMachine(ROOM), auto=False)
    uses = [house.use("a")]
    await settle()
    for _ in range(10):
        await house.pool.apply(AbortLoads(("a",)))
        uses.append(house.use("a"))
        house.engine.tickets[-1].stop()
        await house.time.pass_by(1)
        assert house.state("a") == "queued"
        assert "memory pressure" in house.status("a").detail
        await house.time.pass_by(4)
        assert house.state("a") == "loading"
    assert house.engine.loads_of("a") == 11
    # No request was stopped twice, and only the last one still waits.
    assert all(isinstance(use.error, MemoryPressureAborted) for use in uses[:-1])
    assert (len(uses), uses[-1].error) == (11, None)
    uses[-1].task.cancel()


async def test_a_guard_that_only_watches_by_now_delays_no_load_that_it_stopped() -> None:
    machine = FakeMachine(ROOM)
    house = House(a_model("a"), machine=machine, auto=False)
    first = house.use("a")
    await settle()
    await house.pool.apply(AbortLoads(("a",)))
    house.engine.tickets[-1].stop()
    await settle()
    assert isinstance(first.error, MemoryPressureAborted)
    machine.enforce = False
    again = house.use("a")
    await settle()
    assert house.state("a") == "loading"
    again.task.cancel()
    await settle()


async def test_a_preload_that_the_guard_stops_again_and_again_pauses_ever_longer() -> None:
    """No request asks for it, so only the pause slows it down. A request does not wait for it."""
    options = PoolOptions(retry_first=10.0, retry_longest=40.0)
    house = House(a_model("a"), machine=FakeMachine(ROOM), auto=False, options=options)
    await house.pool.change_settings("a", {"pinned": True})
    await settle()
    for pause in (10, 20, 40, 40):
        loads = house.engine.loads_of("a")
        await stopped_by_the_guard(house)
        await house.time.pass_by(pause - 1)
        assert house.engine.loads_of("a") == loads
        await house.time.pass_by(1)
        assert house.engine.loads_of("a") == loads + 1
    await stopped_by_the_guard(house)
    use = house.use("a")
    await house.time.pass_by(5)
    house.engine.tickets[-1].finish()
    await settle()
    assert use.lease is not None
    await use.done()


async def test_a_load_flagged_by_the_guard_that_failed_by_itself_says_nothing_of_the_next() -> None:
    house = House(a_model("a"), auto=False, options=PoolOptions(retry_first=10.0))
    use = house.use("a")
    await settle()
    await house.pool.apply(AbortLoads(("a",)))
    house.engine.tickets[0].fail(ModelLoadFailed("no"))
    await house.time.pass_by(10)
    assert use.error is not None
    late = house.use("a")
    await settle()
    late.task.cancel()
    await settle()
    house.engine.tickets[1].stop()
    await settle()
    assert house.state("a") == "absent"


async def test_a_guard_that_only_watches_lets_every_load_go_and_says_what_it_would_do() -> None:
    """Monitor mode (enforce = false): same decisions, logged and shown, nothing done."""
    models = [a_model(name, size=100 * MiB) for name in ("a", "b", "c")]
    huge = a_model("huge", size=1000 * MiB)
    house = House(*models, huge, machine=FakeMachine(ROOM))
    assert house.machine is not None
    house.machine.enforce = False
    with capture_logs() as logs:
        await house.pool.load("a")
        await house.pool.load("b")
        uses = [house.use("a"), house.use("b")]
        await settle()
        await house.pool.load("c")
        await house.pool.load("huge")
        await house.time.pass_by(100)
    assert house.engine.resident == {"a", "b", "c", "huge"}
    assert all(use.lease is not None for use in uses)
    would = [log for log in logs if log["event"].startswith("load_would")]
    assert [(log["event"], log["model"]) for log in would] == [
        ("load_would_evict", "b"),
        ("load_would_wait", "c"),
        ("load_would_be_refused", "huge"),
    ]
    assert would[0]["victims"] == ["a"]
    assert (would[2]["code"], would[2]["mark"]) == ("model_too_large", "hard")
    assert house.status("a").detail is None
    assert house.status("b").detail == "a guard that acts would have unloaded a first"
    assert "would have let it wait" in house.status("c").detail
    assert "would have refused it" in house.status("huge").detail
    house.machine.enforce = True
    assert {house.status(name).detail for name in ("a", "b", "c", "huge")} == {None}
    for use in uses:
        await use.done()
    await house.pool.unload("b")
    assert house.status("b").detail is None


async def test_what_is_not_about_models_is_not_for_the_pool() -> None:
    house = House()
    for action in (DropImageCache(), AbortRequests(None), ReclaimBufferCache(), IdleReclaim()):
        assert not (await house.pool.apply(action)).accepted
    assert (house.engine.aborts, house.engine.reclaims) == ([], [])


@pytest.mark.parametrize("seed", range(5))
async def test_forty_mixed_requests_from_eight_clients_are_all_answered(seed: int) -> None:
    """Room for one of two: no request refused or cut, at most five loads each, in order."""
    house = two_models()
    chance = random.Random(seed)
    served: list[tuple[str, int]] = []
    asked: list[tuple[str, int]] = []

    async def client(wishes: list[str]) -> None:
        for name in wishes:
            number = len(asked)
            asked.append((name, number))
            async with house.pool.acquire(name, request_id=f"{number}"):
                served.append((name, number))
                for _ in range(chance.randint(1, 20)):
                    await asyncio.sleep(0)

    wishes = [[chance.choice("ab") for _ in range(5)] for _ in range(8)]
    clients = [asyncio.create_task(client(each)) for each in wishes]
    for _ in range(1000):
        await house.time.pass_by(0.1)
        if all(task.done() for task in clients):
            break
    await asyncio.gather(*clients)
    assert sorted(served) == sorted(asked)
    assert house.engine.aborts == []
    assert house.engine.most_resident == 1
    for name in "ab":
        assert house.engine.loads_of(name) <= 5
        assert [n for m, n in served if m == name] == [n for m, n in asked if m == name]
