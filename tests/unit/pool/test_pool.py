"""The pool with a fake engine: leases, single flight, draining, failures, the queue."""

import asyncio
from typing import Any

import pytest

from omlxd.errors import (
    AmbiguousModel,
    InvalidRequest,
    ModelAway,
    ModelBroken,
    ModelLoadFailed,
    ModelNotFound,
    ModelUnloading,
    QueueFull,
    ShuttingDown,
)
from omlxd.library.catalog import BrokenModel
from omlxd.model_settings.options import ModelSettings
from omlxd.pool.options import PoolOptions
from tests.support.at_once import AtOnce
from tests.support.fake_generation import FakeGeneration, a_sequence
from tests.unit.pool.fakes import (
    FakeActivity,
    FakeMachine,
    House,
    MiB,
    a_model,
    settle,
)


async def test_four_requests_for_a_cold_model_make_one_load() -> None:
    """T09: one load, four answers; and again after it was unloaded."""
    house = House(a_model("m"), auto=False)
    for round_number in (1, 2):
        uses = [house.use("m", f"r{n}") for n in range(4)]
        await settle()
        assert house.engine.loads_of("m") == round_number
        house.engine.tickets[-1].finish()
        await settle()
        assert all(use.lease is not None for use in uses)
        for use in uses:
            await use.done()
        unloading = asyncio.create_task(house.pool.unload("m"))
        await settle()
        house.engine.unloads[-1][1].set_result(7)
        assert await unloading == 7
        assert house.state("m") == "absent"


async def test_a_load_is_cancelled_when_its_last_waiter_leaves() -> None:
    """T10: a client killed during a cold load leaves nothing behind."""
    house = House(a_model("m"), auto=False)
    first, second = house.use("m", "1"), house.use("m", "2")
    await settle()
    first.task.cancel()
    await settle()
    assert not house.engine.tickets[0].cancelled
    second.task.cancel()
    await settle()
    assert house.engine.tickets[0].cancelled
    assert house.state("m") == "loading"
    house.engine.tickets[0].stop()
    await settle()
    assert house.state("m") == "absent"
    assert house.pool.views() == ()


async def test_a_request_that_comes_during_a_cancellation_gets_a_load_of_its_own() -> None:
    house = House(a_model("m"), auto=False)
    first = house.use("m", "1")
    await settle()
    first.task.cancel()
    await settle()
    second = house.use("m", "2")
    await settle()
    house.engine.tickets[0].stop()
    await settle()
    assert house.engine.loads_of("m") == 2
    house.engine.tickets[1].finish()
    await settle()
    assert second.lease is not None
    await second.done()


async def test_a_cancellation_that_comes_too_late_leaves_the_model_ready() -> None:
    house = House(a_model("m"), auto=False)
    use = house.use("m")
    await settle()
    use.task.cancel()
    await settle()
    house.engine.tickets[0].finish()
    await settle()
    assert house.state("m") == "ready"


async def test_a_lease_granted_to_a_cancelled_request_comes_back() -> None:
    """The request is cancelled between the grant and its own next step."""
    house = House(a_model("m"), auto=False)
    use = house.use("m")
    await settle()
    house.engine.tickets[0].finish()
    for _ in range(20):
        await asyncio.sleep(0)
        if house.pool.views()[0].requests:
            break
    use.task.cancel()
    await settle()
    assert house.pool.views()[0].requests == 0
    assert not house.pool.views()[0].busy


async def test_a_lease_is_released_once_and_cancels_what_it_generates() -> None:
    house = House(a_model("m"))
    use = house.use("m")
    await settle()
    generation = use.lease.submit(a_sequence())
    assert isinstance(generation, FakeGeneration)
    use.task.cancel()
    await settle()
    assert generation.cancels == 1
    assert house.pool.views()[0].requests == 0
    with pytest.raises(ModelUnloading):
        use.lease.submit(a_sequence("late"))


async def test_a_model_in_use_is_never_unloaded() -> None:
    """T06: prefilling and queued requests hold a lease; every accepted one is answered."""
    house = House(a_model("m"), options=PoolOptions(idle_timeout=10.0))
    use = house.use("m")
    await settle()
    await house.time.pass_by(60)
    house.pool.check_idle()
    await settle()
    assert house.state("m") == "ready"
    unloading = asyncio.create_task(house.pool.unload("m"))
    await settle()
    assert house.state("m") == "draining"
    assert house.engine.unloads == []
    await use.done()
    await unloading
    assert house.state("m") == "absent"


async def test_a_drain_ends_at_its_deadline_by_abort() -> None:
    house = House(a_model("m"), options=PoolOptions(drain_deadline=60.0))
    use = house.use("m")
    await settle()
    unloading = asyncio.create_task(house.pool.unload("m"))
    await house.time.pass_by(59)
    assert house.engine.aborts == []
    await house.time.pass_by(1)
    assert [model for model, _ in house.engine.aborts] == ["m"]
    assert isinstance(house.engine.aborts[0][1], ModelUnloading)
    with pytest.raises(ModelUnloading):
        use.lease.submit(a_sequence("late"))
    await unloading
    assert house.state("m") == "absent"
    await use.done()


async def test_an_unload_goes_on_when_its_caller_leaves() -> None:
    house = House(a_model("m"))
    use = house.use("m")
    await settle()
    unloading = asyncio.create_task(house.pool.unload("m"))
    await settle()
    unloading.cancel()
    await use.done()
    await settle()
    assert house.state("m") == "absent"


async def test_a_request_during_a_drain_waits_and_loads_again() -> None:
    house = House(a_model("m"))
    first = house.use("m", "1")
    await settle()
    unloading = asyncio.create_task(house.pool.unload("m"))
    await settle()
    second = house.use("m", "2")
    await settle()
    assert second.lease is None
    await first.done()
    await unloading
    await settle()
    assert second.lease is not None
    assert house.engine.loads_of("m") == 2
    await second.done()


async def test_an_unload_of_a_loading_model_cancels_the_load() -> None:
    house = House(a_model("m"), auto=False)
    use = house.use("m")
    await settle()
    assert await house.pool.unload("m") == 0
    await settle()
    assert isinstance(use.error, ModelUnloading)
    assert house.engine.tickets[0].cancelled


async def test_a_failed_load_tells_every_waiter_and_is_left_alone_for_a_while() -> None:
    """T61: the load fails cleanly, the next try waits, and no failure lasts for ever."""
    house = House(a_model("m"), auto=False, options=PoolOptions(retry_first=10.0))
    uses = [house.use("m", "1"), house.use("m", "2")]
    await settle()
    house.engine.tickets[0].fail(ModelBroken("model.safetensors is truncated", file="a"))
    await settle()
    assert all(isinstance(use.error, ModelBroken) for use in uses)
    assert uses[0].error is not uses[1].error
    status = house.status("m")
    assert (status.state, status.problem.code) == ("failed", "model_broken")
    assert (status.problem.retry_in, status.problem.attempts) == (10.0, 1)
    early = house.use("m", "3")
    await settle()
    assert isinstance(early.error, ModelBroken)
    assert house.engine.loads_of("m") == 1
    await house.time.pass_by(10)
    late = house.use("m", "4")
    await settle()
    assert house.engine.loads_of("m") == 2
    house.engine.tickets[1].fail(ModelLoadFailed("no"))
    await settle()
    assert isinstance(late.error, ModelLoadFailed)
    assert late.error.retry_after == 20.0
    assert house.status("m").problem.retry_in == 20.0


async def test_a_model_whose_tokenizer_cannot_be_read_has_a_problem() -> None:
    """T61"""
    house = House(a_model("m"))
    house.tokenizer_fault = ModelBroken("tokenizer.json is damaged.", file="tokenizer.json")
    assert house.status("m").problem is None
    with pytest.raises(ModelBroken):
        await house.pool.load("m")
    assert house.engine.tickets == [], "it was loaded though nobody could use it"
    status = house.status("m")
    assert (status.state, status.problem.code) == ("absent", "model_broken")
    assert (status.problem.file, status.problem.attempts) == ("tokenizer.json", 1)
    house.show(a_model("m", fingerprint="mended"))
    assert house.status("m").problem is None


async def test_a_model_whose_folder_has_left_may_be_asked_for_again() -> None:
    house = House(a_model("m"))
    away = "/models/m does not exist any more (was it moved?)."
    house.tokenizer_fault = ModelAway(away, retry_after=10.0)
    with pytest.raises(ModelAway) as caught:
        await house.pool.tokenizer(a_model("m"))
    assert caught.value.message == (
        "Model 'm' cannot be loaded: its folder does not exist any more (was it moved?)."
    )
    assert 0 < (caught.value.retry_after or 0) <= 10


async def test_a_rescan_by_request_forgets_that_a_tokenizer_could_not_be_read() -> None:
    house = House(a_model("m"))
    house.tokenizer_fault = ModelBroken("tokenizer.json is damaged.")
    with pytest.raises(ModelBroken):
        await house.pool.load("m")
    house.tokenizer_fault = None
    await house.pool.rescan()
    house.show(a_model("m"))
    assert house.status("m").problem is None
    await house.pool.load("m")


PINNED = PoolOptions(settings={"m": ModelSettings(pinned=True)}, retry_first=10.0)


@pytest.mark.parametrize("fault", [ModelBroken("tokenizer.json is damaged."), ValueError("odd")])
async def test_a_pinned_model_is_not_loaded_without_its_tokenizer(fault: Exception) -> None:
    """T61"""
    house = House(options=PINNED)
    house.engine.sizes["m"] = MiB
    house.tokenizer_fault = fault
    house.show(a_model("m"))
    assert (house.state("m"), house.pool.preloading) == ("queued", ("m",))
    assert house.status("m").detail == "its tokenizer is being read"
    await settle()
    status = house.status("m")
    assert (status.state, status.problem.retry_in) == ("failed", 10.0)
    assert (house.engine.tickets, house.pool.preloading) == ([], ())
    house.tokenizer_fault = None
    house.show(a_model("m", fingerprint="mended"))
    await house.time.pass_by(10)
    assert house.state("m") == "ready"
    assert len(house.tokenizer_loads) == 2


async def test_a_tokenizer_that_hangs_delays_no_stop() -> None:
    class Hanging(AtOnce[Any]):
        def start(self) -> None:
            """Never ends."""

    house = House(options=PINNED, own_thread=Hanging)
    house.show(a_model("m"))
    await settle()
    assert house.state("m") == "queued"
    await house.pool.stop()
    assert house.state("m") == "absent"


async def test_a_failure_never_shows_where_the_files_are() -> None:
    house = House(a_model("m"), auto=False)
    use = house.use("m")
    await settle()
    path = "/models/m/model.safetensors"
    house.engine.tickets[0].fail(ModelBroken(f"{path} is truncated.", file=path))
    await settle()
    assert use.error.message == "Model 'm' cannot be loaded: model.safetensors is truncated."
    problem = house.status("m").problem
    assert (problem.message, problem.file) == (use.error.message, "model.safetensors")


async def test_a_rescan_by_request_forgets_failures() -> None:
    house = House(a_model("m"), auto=False)
    use = house.use("m")
    await settle()
    house.engine.tickets[0].fail(ModelLoadFailed("no"))
    await settle()
    assert use.error is not None
    catalog = await house.pool.rescan()
    assert catalog.roots == ()
    house.show(a_model("m"))
    assert house.state("m") == "absent"
    again = house.use("m")
    await settle()
    assert house.engine.loads_of("m") == 2
    again.task.cancel()


async def test_pauses_after_failures_double_up_to_a_limit() -> None:
    options = PoolOptions(retry_first=10.0, retry_longest=35.0)
    house = House(a_model("m"), auto=False, options=options)
    pauses = []
    for _ in range(4):
        use = house.use("m")
        await settle()
        house.engine.tickets[-1].fail(ModelLoadFailed("no"))
        await settle()
        assert use.error is not None
        pauses.append(house.status("m").problem.retry_in)
        await house.time.pass_by(pauses[-1])
    assert pauses == [10.0, 20.0, 35.0, 35.0]


async def test_a_fault_in_a_load_fails_only_that_load() -> None:
    house = House(a_model("m"), auto=False)
    use = house.use("m")
    await settle()
    house.engine.tickets[0].fail(RuntimeError("a bug"))
    await settle()
    assert isinstance(use.error, ModelLoadFailed)
    assert house.state("m") == "failed"


async def test_a_fault_in_an_unload_is_told_to_the_daemon() -> None:
    """Requests would wait for the model for ever, so the daemon must not stay half alive."""

    def failing() -> None:
        raise OSError("injected")

    deaths: list[BaseException] = []
    house = House(a_model("m"), release_memory=failing, died=deaths.append)
    await house.pool.load("m")
    unloading = asyncio.create_task(house.pool.unload("m"))
    while not deaths:
        await asyncio.sleep(0)
    assert [str(death) for death in deaths] == ["injected"]
    unloading.cancel()


async def test_a_load_by_request_returns_facts_and_leaves_no_lease() -> None:
    house = House(a_model("m", size=5))
    assert (await house.pool.load("m")).weights_bytes == 5
    assert (await house.pool.load("m")).weights_bytes == 5
    assert house.engine.loads_of("m") == 1
    assert not house.pool.views()[0].busy


async def test_progress_of_a_load_is_shown_in_bytes() -> None:
    house = House(a_model("m", size=1000), auto=False)
    use = house.use("m")
    await settle()
    assert house.status("m").loaded_bytes is None
    house.engine.tickets[0].progress(400)
    status = house.status("m")
    assert (status.state, status.loaded_bytes, status.total_bytes) == ("loading", 400, 1000)
    house.engine.tickets[0].finish()
    await settle()
    await use.done()


async def test_more_requests_than_a_model_may_serve_wait_in_order() -> None:
    options = PoolOptions(settings={"m": ModelSettings(max_concurrent_requests=2)})
    house = House(a_model("m"), options=options)
    uses = [house.use("m", f"r{n}") for n in range(4)]
    await settle()
    assert [use.lease is not None for use in uses] == [True, True, False, False]
    await uses[1].done()
    await settle()
    assert [use.lease is not None for use in uses] == [True, True, True, False]
    await house.time.pass_by(300)
    assert isinstance(uses[3].error, QueueFull)
    for use in (uses[0], uses[2]):
        await use.done()


async def test_only_so_many_wait_for_a_model_and_the_next_is_told_at_once() -> None:
    house = House(a_model("m"), a_model("n"), auto=False, most_waiting=2)
    waiting = [house.use("m", f"{n}") for n in range(2)]
    await settle()
    refused = house.use("m", "2")
    await settle()
    assert isinstance(refused.error, QueueFull)
    assert refused.error.retry_after is not None
    other = house.use("n", "3")
    await settle()
    assert other.error is None
    house.engine.tickets[0].finish()
    await settle()
    assert all(use.lease is not None for use in waiting)
    late = house.use("m", "4")
    await settle()
    assert late.lease is not None
    for use in (*waiting, late):
        await use.done()
    other.task.cancel()


async def test_a_deadline_of_the_request_counts() -> None:
    options = PoolOptions(settings={"m": ModelSettings(max_concurrent_requests=1)})
    house = House(a_model("m"), options=options)
    first = house.use("m", "1")
    second = house.use("m", "2", deadline=house.time.now + 5)
    await house.time.pass_by(4)
    assert second.error is None
    await house.time.pass_by(1)
    assert isinstance(second.error, QueueFull)
    await first.done()


async def test_an_idle_model_is_unloaded_after_its_timeout() -> None:
    options = PoolOptions(idle_timeout=100.0, settings={"short": ModelSettings(idle_timeout=10.0)})
    house = House(a_model("long"), a_model("short"), options=options)
    await house.pool.load("long")
    await house.pool.load("short")
    await house.time.pass_by(9)
    house.pool.check_idle()
    assert house.status("short").unload_in == 1.0
    await house.time.pass_by(1)
    house.pool.check_idle()
    await settle()
    assert (house.state("short"), house.state("long")) == ("absent", "ready")


async def test_an_idle_timeout_needs_nobody_to_look() -> None:
    """The guard may be off, or may look rarely."""
    options = PoolOptions(idle_timeout=100.0)
    house = House(a_model("a"), a_model("b"), options=options)
    await house.pool.load("a")
    await house.time.pass_by(50)
    use = house.use("b")
    await house.time.pass_by(49)
    assert house.state("a") == "ready"
    await house.time.pass_by(1)
    assert (house.state("a"), house.state("b")) == ("absent", "ready")
    await house.time.pass_by(100)
    await use.done()
    await house.pool.change_settings("b", {"idle_timeout": 3})
    await house.time.pass_by(2.5)
    assert (house.state("b"), house.status("b").unload_in) == ("ready", 0.5)
    await house.time.pass_by(0.5)
    assert house.state("b") == "absent"


async def test_a_pinned_model_stays_and_is_loaded_at_start() -> None:
    options = PoolOptions(idle_timeout=1.0, settings={"m": ModelSettings(pinned=True)})
    house = House(a_model("m"), options=options, auto=False)
    assert house.pool.preloading == ("m",)
    await settle()
    house.engine.tickets[0].finish()
    await settle()
    assert house.pool.preloading == ()
    await house.time.pass_by(50)
    house.pool.check_idle()
    await settle()
    assert house.state("m") == "ready"


async def test_a_model_pinned_while_it_leaves_comes_back() -> None:
    house = House(a_model("m"), auto=False)
    loading = asyncio.create_task(house.pool.load("m"))
    await settle()
    house.engine.tickets[0].finish()
    await loading
    unloading = asyncio.create_task(house.pool.unload("m"))
    await settle()
    await house.pool.change_settings("m", {"pinned": True})
    house.engine.unloads[0][1].set_result(MiB)
    await unloading
    await settle()
    assert house.state("m") == "loading"
    house.engine.tickets[1].finish()
    await settle()
    assert (house.state("m"), house.pool.preloading) == ("ready", ())


async def test_a_failed_preload_is_tried_again_by_itself() -> None:
    options = PoolOptions(settings={"m": ModelSettings(pinned=True)}, retry_first=10.0)
    house = House(a_model("m"), options=options, auto=False)
    await settle()
    house.engine.tickets[0].fail(ModelLoadFailed("no"))
    await settle()
    assert house.pool.preloading == ()
    await house.time.pass_by(10)
    assert house.engine.loads_of("m") == 2


async def test_a_vanished_model_drains_and_is_forgotten() -> None:
    house = House(a_model("m"), a_model("other"))
    use = house.use("m")
    await settle()
    house.show(a_model("other"))
    assert house.state("m") == "draining"
    with pytest.raises(ModelNotFound):
        house.library.resolve("m")
    await use.done()
    await settle()
    assert [status.id for status in house.pool.statuses()] == ["other"]


async def test_requests_that_wait_for_a_vanished_model_are_told() -> None:
    house = House(a_model("m"), auto=False)
    use = house.use("m")
    await settle()
    house.show()
    await settle()
    assert isinstance(use.error, ModelNotFound)
    assert house.engine.tickets[0].cancelled
    house.engine.tickets[0].stop()
    await settle()
    assert house.pool.statuses() == ()


async def test_a_replaced_model_is_loaded_anew_for_the_next_request() -> None:
    house = House(a_model("m"))
    use = house.use("m", "1")
    await settle()
    house.show(a_model("m", fingerprint="2"))
    later = house.use("m", "2")
    await settle()
    assert later.lease is None
    await use.done()
    await settle()
    assert later.lease is not None
    assert house.engine.loads_of("m") == 2
    await later.done()


@pytest.mark.parametrize("state", ["ready", "queued", "loading"])
async def test_tokens_of_a_replaced_model_never_reach_the_one_in_its_place(state: str) -> None:
    """The new model would read them differently."""
    settings = {"m": ModelSettings(max_concurrent_requests=1)}
    machine = FakeMachine(15 * MiB)
    house = House(
        a_model("m"), a_model("n"), options=PoolOptions(settings=settings), machine=machine
    )
    house.engine.auto = state != "loading"
    using = house.use("n" if state == "queued" else "m", "1")
    await settle()
    old = house.use("m", "2", made_for="m-1")
    await settle()
    assert house.state("m") == state
    house.show(a_model("m", fingerprint="2"), a_model("n"))
    await settle()
    assert isinstance(old.error, ModelUnloading)
    assert (old.error.retry_after, "send the request again" in old.error.message) == (1.0, True)
    new, late = house.use("m", "3", made_for="m-2"), house.use("m", "4", made_for="m-1")
    if state == "loading":
        house.engine.auto = True
        house.engine.tickets[0].stop()
        await settle()
    await using.done()
    await settle()
    assert isinstance(late.error, ModelUnloading)
    assert new.lease is not None
    await new.done()


async def test_tokens_of_the_files_that_came_back_fit_and_those_of_between_do_not() -> None:
    house = House(a_model("m"))
    using = house.use("m", "1", made_for="m-1")
    await settle()
    house.show(a_model("m", fingerprint="2"))
    between = house.use("m", "2", made_for="m-2")
    await settle()
    house.show(a_model("m"))
    back = house.use("m", "3", made_for="m-1")
    await using.done()
    await settle()
    assert isinstance(between.error, ModelUnloading)
    assert back.lease is not None
    await back.done()


@pytest.mark.parametrize("how", ["replaced", "away and back"])
async def test_a_pinned_model_that_leaves_with_its_files_comes_back_with_them(how: str) -> None:
    options = PoolOptions(settings={"m": ModelSettings(pinned=True)})
    house = House(a_model("m"), options=options)
    use = house.use("m")
    await settle()
    if how == "replaced":
        house.show(a_model("m", fingerprint="2"))
    else:
        house.show()
        house.show(a_model("m"))
    await settle()
    assert house.state("m") == "draining"
    await use.done()
    await settle()
    assert house.state("m") == "ready"
    assert house.engine.loads_of("m") == 2


async def test_a_pinned_model_that_was_asked_to_leave_is_not_loaded_for_new_files() -> None:
    options = PoolOptions(settings={"m": ModelSettings(pinned=True)})
    house = House(a_model("m"), options=options)
    await settle()
    await house.pool.unload("m")
    house.show(a_model("m", fingerprint="2"))
    await settle()
    assert house.state("m") == "absent"


async def test_a_replaced_model_forgets_that_the_old_one_failed() -> None:
    house = House(a_model("m"), auto=False)
    use = house.use("m")
    await settle()
    house.engine.tickets[0].fail(ModelLoadFailed("no"))
    await settle()
    assert use.error is not None
    house.show(a_model("m", fingerprint="2"))
    assert house.state("m") == "absent"


async def test_stopping_ends_everything() -> None:
    options = PoolOptions(settings={"b": ModelSettings(max_concurrent_requests=1)})
    house = House(a_model("a"), a_model("b"), options=options)
    using, running, waiting = house.use("a", "1"), house.use("b", "2"), house.use("b", "3")
    await settle()
    await house.pool.stop()
    assert isinstance(waiting.error, ShuttingDown)
    assert house.engine.resident == set()
    assert {model for model, _ in house.engine.aborts} == {"a", "b"}
    late = house.use("a", "4")
    await settle()
    assert isinstance(late.error, ShuttingDown)
    await using.done()
    await running.done()


async def test_names_are_resolved_and_broken_models_say_why() -> None:
    options = PoolOptions(default="b", settings={"org/a": ModelSettings(aliases=("small",))})
    house = House(options=options)
    bad = BrokenModel("bad", "model.safetensors", "is truncated")
    house.show(a_model("org/a"), a_model("b"), broken=[bad])
    resolve = house.library.resolve
    assert resolve("small").id == resolve("ORG/A").id == resolve("a").id == "org/a"
    assert resolve(None).id == "b"
    with pytest.raises(ModelBroken, match=r"model\.safetensors is truncated"):
        resolve("bad")
    with pytest.raises(ModelNotFound):
        resolve("nothing like it")


async def test_without_a_default_the_only_model_is_meant() -> None:
    house = House()
    with pytest.raises(InvalidRequest):
        house.library.resolve(None)
    house.show(a_model("m"))
    assert house.library.resolve(None).id == "m"
    house.show(a_model("m"), a_model("n"))
    with pytest.raises(InvalidRequest):
        house.library.resolve(None)


async def test_an_alias_of_two_models_is_an_error_that_lists_them() -> None:
    settings = {name: ModelSettings(aliases=("x",)) for name in ("a", "b")}
    house = House(a_model("a"), a_model("b"), options=PoolOptions(settings=settings))
    with pytest.raises(AmbiguousModel, match="a, b"):
        house.library.resolve("x")


async def test_a_context_limit_never_exceeds_the_models_own() -> None:
    """T57: asked 131072, model trained for 4096: the effective number is reported."""
    settings = {
        "a": ModelSettings(context_length=131072),
        "b": ModelSettings(context_length=100),
    }
    house = House(a_model("a"), a_model("b"), options=PoolOptions(settings=settings))
    assert [house.library.context_length(name) for name in "ab"] == [4096, 100]
    assert house.status("a").context_length == 4096


async def test_a_tokenizer_is_loaded_once_for_all_and_again_for_a_replaced_model() -> None:
    house = House(a_model("m"))
    read = house.pool.tokenizer
    first, second = await asyncio.gather(read(a_model("m")), read(a_model("m")))
    assert first is second
    assert house.tokenizer_loads == ["/models/m"]
    assert await read(a_model("m", fingerprint="2")) is not first


async def test_the_guard_is_woken_when_memory_changes() -> None:
    house = House(a_model("m"))
    await house.pool.load("m")
    woken = house.woken
    assert woken >= 2
    await house.pool.unload("m")
    assert house.woken > woken


async def test_a_model_is_in_use_until_the_device_has_let_go_of_its_requests() -> None:
    """Otherwise the guard would unload it for the memory of requests that it just ended."""
    house = House(a_model("m"))
    await house.pool.load("m")
    house.engine.activity["m"] = FakeActivity(held=1)
    seen = house.pool.views()[0]
    assert (seen.busy, seen.requests, seen.ending) == (True, 0, 1)
    house.engine.activity["m"] = FakeActivity()
    assert not house.pool.views()[0].busy


async def test_the_status_tells_how_long_a_model_has_made_no_step() -> None:
    house = House(a_model("m"))
    assert house.status("m").since_step is None
    await house.pool.load("m")
    assert house.status("m").since_step is None, "it has made none"
    house.engine.activity["m"] = FakeActivity(held=1, last_step_at=house.time.clock())
    await house.time.pass_by(42)
    assert house.status("m").since_step == 42
