"""The bytes that a load is promised, that it really takes, and that are remembered."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from omlxd.errors import ModelTooLarge
from omlxd.library.catalog import CatalogModel, ModelKind
from omlxd.model_settings.options import ModelSettings
from omlxd.pool.measured_sizes import MeasuredSizes
from omlxd.pool.options import PoolOptions
from omlxd.pool.record import ModelRecord
from tests.support.at_once import AtOnce
from tests.unit.pool.fakes import FakeActivity, FakeMachine, House, MiB, a_model, settle

REQUEST: ContextVar[str | None] = ContextVar("request", default=None)
"""Like the context variable of the log, which holds the id of the current request."""


async def test_a_load_that_outgrows_its_promise_goes_on_where_there_is_room() -> None:
    house = House(a_model("a", size=50 * MiB), machine=FakeMachine(300 * MiB), auto=False)
    house.engine.sizes["a"] = 100 * MiB
    use = house.use("a")
    await settle()
    (ticket,) = house.engine.tickets
    ticket.progress(0)
    await settle()
    assert not ticket.cancelled
    assert house.status("a").promised_bytes >= 100 * MiB
    ticket.finish()
    await settle()
    assert use.lease is not None
    await use.done()


async def test_a_load_that_outgrows_its_promise_waits_in_the_queue_for_the_rest() -> None:
    """Its files have 50 MiB, the backend needs 100 MiB, and a model in use leaves no room."""
    house = House(
        a_model("a", size=50 * MiB),
        a_model("b", size=70 * MiB),
        a_model("c", size=5 * MiB),
        machine=FakeMachine(160 * MiB),
        auto=False,
    )
    house.engine.sizes["a"] = 100 * MiB
    first = house.use("b")
    await settle()
    house.engine.tickets[0].finish()
    await house.time.pass_by(6)
    use, later = house.use("a"), house.use("c")
    await settle()
    tickets = [t for t in house.engine.tickets if t.model_id == "a"]
    tickets[0].progress(0)
    await settle()
    assert tickets[0].cancelled
    tickets[0].stop()
    await settle()
    assert (house.state("a"), house.status("a").position) == ("queued", 1)
    assert not use.task.done()
    house.engine.tickets[-1].finish()
    await first.done()
    await later.done()
    await settle()
    for _, answer in house.engine.unloads:
        answer.set_result(70 * MiB)
    await house.time.pass_by(2)
    (_, again) = [t for t in house.engine.tickets if t.model_id == "a"]
    again.progress(0)
    again.finish()
    await settle()
    assert use.lease is not None
    await use.done()


async def test_a_load_that_turns_out_too_large_is_refused_and_not_tried_again() -> None:
    house = House(a_model("a", size=90 * MiB), machine=FakeMachine(160 * MiB), auto=False)
    house.engine.sizes["a"] = 180 * MiB
    use = house.use("a", "1")
    await settle()
    (ticket,) = house.engine.tickets
    ticket.progress(10 * MiB)
    await settle()
    ticket.stop()
    await settle()
    assert isinstance(use.error, ModelTooLarge)
    assert house.status("a").promised_bytes == 0
    again = house.use("a", "2")
    await settle()
    assert isinstance(again.error, ModelTooLarge)
    assert house.engine.loads_of("a") == 1


async def test_a_pinned_model_that_outgrows_its_promise_is_still_preloaded() -> None:
    options = PoolOptions(settings={"a": ModelSettings(pinned=True)})
    machine = FakeMachine(160 * MiB)
    house = House(machine=machine, auto=False, options=options)
    house.engine.sizes["a"] = 100 * MiB
    house.show(a_model("a", size=50 * MiB))
    await settle()
    machine.others = 80 * MiB
    house.engine.tickets[0].progress(0)
    await settle()
    assert house.engine.tickets[0].cancelled
    house.engine.tickets[0].stop()
    machine.others = 0
    await house.time.pass_by(30)
    assert house.engine.loads_of("a") == 2


def two_beside_each_other() -> House:
    """Both models fit, with headroom for one first prefill (5 MiB), but not for two."""
    return House(
        a_model("a", size=100 * MiB),
        a_model("b", size=100 * MiB),
        machine=FakeMachine(220 * MiB),
        auto=False,
    )


async def test_the_room_for_a_first_prefill_is_not_promised_twice() -> None:
    house = two_beside_each_other()
    first = house.use("a")
    await settle()
    house.engine.tickets[0].finish()
    await settle()
    assert first.lease is not None
    assert house.status("a").promised_bytes == 5 * MiB
    house.engine.activity["a"] = FakeActivity(held=1, last_step_at=house.time.clock())
    assert house.status("a").promised_bytes == 0
    await first.done()


async def test_the_room_for_a_first_prefill_is_kept_for_a_few_seconds_at_most() -> None:
    house = two_beside_each_other()
    first = house.use("a")
    await settle()
    house.engine.tickets[0].finish()
    second = house.use("b")
    await house.time.pass_by(4)
    assert (house.engine.loads_of("b"), second.lease) == (0, None)
    assert house.status("b").detail == "memory is promised to other loads"
    await house.time.pass_by(2)
    assert house.engine.loads_of("b") == 1
    house.engine.tickets[1].finish()
    await settle()
    await first.done()
    await second.done()


async def test_a_loaded_model_that_nobody_uses_is_kept_no_room() -> None:
    house = House(a_model("a", size=100 * MiB), machine=FakeMachine(300 * MiB))
    await house.pool.load("a")
    assert house.status("a").promised_bytes == 0


async def test_a_load_beside_other_work_does_not_replace_what_was_measured() -> None:
    machine = FakeMachine(600 * MiB)
    house = House(
        a_model("a", size=100 * MiB), a_model("b", size=100 * MiB), machine=machine, auto=False
    )
    first = house.use("a")
    await settle()
    machine.others = 30 * MiB
    house.engine.tickets[0].finish()
    await settle()
    assert house.status("a").measured_bytes == 130 * MiB
    await first.done()
    beside = house.use("b")
    await settle()
    house.engine.tickets[1].finish()
    unloading = asyncio.create_task(house.pool.unload("a"))
    await settle()
    house.engine.unloads[0][1].set_result(100 * MiB)
    await unloading
    again = house.use("a")
    await settle()
    house.engine.tickets[2].finish()
    await settle()
    assert again.lease is not None
    assert house.status("a").measured_bytes == 130 * MiB
    await beside.done()
    await again.done()


async def test_what_the_allocator_pools_is_not_counted_as_the_models() -> None:
    house = House(a_model("a", size=100 * MiB), machine=FakeMachine(600 * MiB), auto=False)
    use = house.use("a")
    await settle()
    house.engine.pool = 40 * MiB
    house.engine.tickets[0].finish()
    await settle()
    assert house.status("a").measured_bytes == 100 * MiB
    await use.done()


async def test_idleness_begins_when_a_model_is_loaded() -> None:
    """Otherwise a preload that took longer than the idle timeout would be dropped at once."""
    options = PoolOptions(idle_timeout=60.0)
    house = House(a_model("a"), auto=False, options=options)
    house.pool._residency.records["a"].preload = True
    house.pool._residency.advance()
    await house.time.pass_by(100)
    house.engine.tickets[0].finish()
    await settle()
    house.pool.check_idle()
    assert house.state("a") == "ready"
    assert house.status("a").idle_seconds == 0
    await house.time.pass_by(60)
    house.pool.check_idle()
    assert house.state("a") == "unloading"


def test_what_is_promised_and_not_allocated_is_outstanding() -> None:
    records = [
        ModelRecord(a_model(name), ModelSettings(), last_used=0.0, idle_since=0.0)
        for name in ("a", "b", "nobody")
    ]
    a, b, nobody = records
    a.reserve(100)
    b.reserve(50)
    a.allocated, b.allocated, nobody.allocated = 70, 60, 5
    assert sum(record.unallocated for record in records) == 30
    assert {record.id for record in records if record.promised} == {"a", "b"}
    a.release()
    a.release()
    assert sum(record.unallocated for record in records) == 0


def test_a_measured_size_counts_only_for_the_same_files() -> None:
    sizes = MeasuredSizes()
    model, changed = a_model("m", size=100), a_model("m", size=100, fingerprint="2")
    assert (sizes.measured(model), sizes.expected(model)) == (None, 100)
    assert sizes.note(model, 130)
    assert not sizes.note(model, 130)
    assert (sizes.expected(model), sizes.expected(changed)) == (130, 100)
    restored = MeasuredSizes()
    restored.restore({**sizes.to_json(), "bad": 5, "worse": {"bytes": -1, "fingerprint": ""}})
    assert restored.to_json() == sizes.to_json()


def test_vision_parts_that_are_not_loaded_are_not_counted() -> None:
    base = a_model("m", size=100)
    fields = {name: getattr(base, name) for name in CatalogModel.__slots__}
    model = CatalogModel(**{**fields, "kind": ModelKind.VISION_LANGUAGE, "vision_bytes": 30})
    assert MeasuredSizes().expected(model) == 70


async def test_no_alarm_spins_while_a_load_outlasts_a_deadline() -> None:
    house = House(a_model("m"), auto=False)
    use = house.use("m", deadline=house.time.now + 1)
    await house.time.pass_by(1000)
    assert use.error is None
    house.engine.tickets[0].finish()
    await settle()
    assert use.lease is not None
    await use.done()


async def test_loads_preloads_and_unloads_are_not_of_the_request_that_set_them_off() -> None:
    seen: list[tuple[str, str | None]] = []

    def own_thread(name: str, work: Callable[[], Any]) -> AtOnce[Any]:
        seen.append(("read", REQUEST.get()))
        return AtOnce(name, work)

    def usage() -> int:
        seen.append(("weigh", REQUEST.get()))
        return 0

    house = House(a_model("m"), own_thread=own_thread, usage=usage)
    house.engine.on_unload = lambda freed: seen.append(("unload", REQUEST.get()))
    REQUEST.set("r")
    await house.pool.change_settings("m", {"pinned": True})
    await settle()
    assert house.state("m") == "ready"
    await house.pool.unload("m")
    assert [what for what, _ in dict.fromkeys(seen)] == ["read", "weigh", "unload"]
    assert {request for _, request in seen} == {None}
