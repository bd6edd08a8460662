"""The queue for memory: its order, which models make room, and which stay after all."""

import asyncio
from dataclasses import replace

import pytest

from omlxd.errors import MemoryPressure, ModelTooLarge
from omlxd.model_settings.options import ModelSettings
from omlxd.policy.actions import MarkPendingUnload
from omlxd.policy.eviction import Eviction
from omlxd.pool.options import PoolOptions
from tests.unit.pool.fakes import FakeMachine, House, MiB, a_model, settle

ROOM = 160 * MiB
"""Bytes; enough for one of two models of 100 MiB."""


def two_models(**settings: ModelSettings) -> House:
    return House(
        a_model("a", size=100 * MiB),
        a_model("b", size=100 * MiB),
        machine=FakeMachine(ROOM),
        options=PoolOptions(drain_after=30.0, queue_deadline=300.0, settings=settings),
    )


def three_models(*names: str) -> House:
    """There is room for two of them."""
    return House(
        *(a_model(name, size=60 * MiB) for name in names),
        machine=FakeMachine(ROOM),
        options=PoolOptions(drain_after=30.0),
    )


async def test_one_long_answer_does_not_take_both_models_down() -> None:
    """A request for each model comes every 100 s; the resident model answers all of its own."""
    house = two_models()
    stream = house.use("a", "stream")
    await settle()
    of_a, of_b = [], []
    for number in range(18):
        of_a.append(house.use("a", f"a{number}"))
        of_b.append(house.use("b", f"b{number}"))
        await house.time.pass_by(50)
        for use in of_a:
            use.leave.set()
        await house.time.pass_by(50)
    await house.time.pass_by(270)
    assert [use.error for use in of_a] == [None] * 18
    assert isinstance(of_b[0].error, MemoryPressure)
    assert house.engine.aborts == []
    last = house.use("b", "last")
    await stream.done()
    await house.time.pass_by(1)
    assert last.lease is not None
    for use in (*of_b[3:], last):
        use.leave.set()
    await settle()


async def test_the_model_stays_when_the_request_that_it_drained_for_is_gone() -> None:
    """The next request waits as long after its arrival as the first one did."""
    house = two_models()
    first = house.use("a", "1")
    await settle()
    impatient = house.use("b", "2", deadline=house.time.clock() + 40)
    await house.time.pass_by(20)
    next_one = house.use("b", "3")
    await house.time.pass_by(10)
    assert house.state("a") == "draining"
    late = house.use("a", "4")
    await house.time.pass_by(10)
    assert isinstance(impatient.error, MemoryPressure)
    assert house.state("a") == "ready"
    assert late.lease is not None
    await house.time.pass_by(9)
    assert house.state("a") == "ready"
    await house.time.pass_by(1)
    assert house.state("a") == "draining"
    await first.done()
    await late.done()
    await settle()
    assert next_one.lease is not None
    await next_one.done()


@pytest.mark.parametrize("next_model", ["b", "c"])
async def test_the_model_leaves_for_the_next_in_the_queue_who_has_waited_long_enough(
    next_model: str,
) -> None:
    """The first in the queue may leave; later requests for the resident still come after it."""
    house = House(
        *(a_model(name, size=100 * MiB) for name in "abc"),
        machine=FakeMachine(ROOM),
        options=PoolOptions(drain_after=30.0),
    )
    first = house.use("a", "1")
    await settle()
    leaves, next_one = house.use("b", "2"), house.use(next_model, "3")
    await house.time.pass_by(32)
    late = house.use("a", "4")
    await house.time.pass_by(3)
    leaves.task.cancel()
    await settle()
    assert house.state("a") == "draining"
    assert late.lease is None
    await first.done()
    await settle()
    assert next_one.lease is not None
    await next_one.done()
    await late.done()


async def test_a_model_serves_those_who_came_before_the_one_it_makes_room_for() -> None:
    """Otherwise it would be unloaded, and then loaded again for them first."""
    house = two_models(a=ModelSettings(max_concurrent_requests=1))
    first, second = house.use("a", "1"), house.use("a", "2")
    await settle()
    third = house.use("b", "3")
    await house.time.pass_by(60)
    assert house.state("a") == "ready"
    await first.done()
    await settle()
    assert second.lease is not None
    await house.time.pass_by(1)
    assert house.state("a") == "draining"
    await second.done()
    await settle()
    assert third.lease is not None
    assert house.engine.loads_of("a") == 1
    await third.done()


async def test_an_idle_model_stays_while_one_in_use_is_in_the_way_too() -> None:
    house = House(
        a_model("busy", size=100 * MiB),
        a_model("idle", size=30 * MiB),
        a_model("b", size=130 * MiB),
        machine=FakeMachine(ROOM),
        options=PoolOptions(drain_after=30.0),
    )
    await house.pool.load("idle")
    using = house.use("busy", "1")
    await settle()
    waiting = house.use("b", "2")
    await house.time.pass_by(29)
    assert house.status("b").detail == "waits for busy, in use"
    assert (house.state("busy"), house.state("idle")) == ("ready", "ready")
    await house.time.pass_by(20)
    assert (house.state("busy"), house.state("idle")) == ("draining", "ready")
    await using.done()
    await settle()
    assert house.engine.resident == {"b"}
    assert waiting.lease is not None
    await waiting.done()


async def test_a_model_that_becomes_idle_makes_room_in_place_of_one_in_use() -> None:
    house = three_models("a", "c", "b")
    using_a = house.use("a", "1")
    await house.time.pass_by(1)
    using_c = house.use("c", "2")
    await settle()
    waiting = house.use("b", "3")
    await house.time.pass_by(40)
    assert (house.state("a"), house.state("c")) == ("draining", "ready")
    await using_c.done()
    await settle()
    assert waiting.lease is not None
    assert house.engine.resident == {"a", "b"}
    assert house.state("a") == "ready"
    await using_a.done()
    await waiting.done()


async def test_a_pin_keeps_a_model_that_was_about_to_make_room() -> None:
    house = three_models("one", "three", "two")
    using_one = house.use("one", "1")
    await house.time.pass_by(1)
    using_three = house.use("three", "2")
    await settle()
    waiting = house.use("two", "3")
    await house.time.pass_by(30)
    assert (house.state("one"), house.state("three")) == ("draining", "ready")
    await house.pool.change_settings("one", {"pinned": True})
    assert house.state("one") == "ready"
    await house.time.pass_by(30)
    assert (house.state("one"), house.state("three")) == ("ready", "draining")
    await using_one.done()
    await settle()
    assert house.state("one") == "ready"
    await using_three.done()
    await settle()
    assert waiting.lease is not None
    assert house.engine.resident == {"one", "two"}
    await waiting.done()


async def test_a_pin_keeps_a_model_that_the_guard_wants_gone_and_not_one_asked_to_go() -> None:
    house = House(a_model("m"), options=PoolOptions(drain_deadline=60.0))
    using = house.use("m", "1")
    await settle()
    await house.pool.apply(MarkPendingUnload("m"))
    assert house.state("m") == "draining"
    await house.pool.change_settings("m", {"pinned": True})
    assert house.state("m") == "ready"
    await house.pool.change_settings("m", {"pinned": False})
    await house.pool.apply(MarkPendingUnload("m"))
    unloading = asyncio.create_task(house.pool.unload("m"))
    await settle()
    await house.pool.change_settings("m", {"pinned": True})
    assert house.state("m") == "draining"
    await using.done()
    assert await unloading > 0


async def test_each_eviction_is_reported_when_asked_for_and_with_what_came_free() -> None:
    reports: list[Eviction] = []
    house = House(
        *(a_model(name, size=100 * MiB) for name in "abc"),
        machine=FakeMachine(ROOM),
        options=PoolOptions(drain_after=30.0),
        on_eviction=reports.append,
    )
    asked = Eviction(for_model="b", model_id="a", bytes=100 * MiB)
    await house.pool.load("a")
    assert reports == []
    waiting = house.use("b", "1")
    await settle()
    assert reports == [asked, replace(asked, freed=100 * MiB)]
    reports.clear()
    leaves = house.use("c", "2")
    await house.time.pass_by(30)
    asked = Eviction(for_model="c", model_id="b", bytes=100 * MiB)
    assert reports == [asked]
    leaves.task.cancel()
    await settle()
    assert house.state("b") == "ready"
    assert reports == [asked, replace(asked, freed=0)]
    await waiting.done()
    await house.pool.unload("b")
    assert len(reports) == 2, "what a client asks for makes no room for a load"


async def test_what_can_never_fit_is_refused_at_once_also_behind_one_that_waits() -> None:
    house = House(
        a_model("a", size=100 * MiB),
        a_model("b", size=100 * MiB),
        a_model("huge", size=1000 * MiB),
        machine=FakeMachine(160 * MiB),
    )
    current = house.use("a", "1")
    await settle()
    waiting = house.use("b", "2")
    await settle()
    assert waiting.lease is None
    refused = house.use("huge", "3")
    await settle()
    assert isinstance(refused.error, ModelTooLarge)
    await current.done()
    await settle()
    assert waiting.lease is not None
    await waiting.done()


async def test_who_waits_behind_the_first_in_the_queue_is_told_for_whom() -> None:
    house = House(
        a_model("a", size=100 * MiB),
        a_model("b", size=100 * MiB),
        a_model("c", size=100 * MiB),
        machine=FakeMachine(160 * MiB),
    )
    current = house.use("a", "1")
    await house.time.pass_by(6)
    second, third = house.use("b", "2"), house.use("c", "3")
    await settle()
    assert (house.status("b").position, house.status("b").detail) == (1, "waits for a, in use")
    assert (house.status("c").position, house.status("c").detail) == (2, "waits behind b")
    for use in (current, second, third):
        await use.done()
