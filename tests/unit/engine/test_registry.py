"""The registry of running requests: their phases, and their end when the daemon stops."""

import asyncio

import pytest

from omlxd.engine.generation import RequestPhase, RequestView
from omlxd.engine.registry import RequestRegistry
from omlxd.errors import OmlxdError, ShuttingDown
from tests.support.fake_generation import FakeGeneration, a_sequence


def leaving() -> OmlxdError:
    return ShuttingDown("The server is shutting down.")


def open_one(requests: RequestRegistry, name: str, phase: RequestPhase | None) -> asyncio.Task[int]:
    """A request in ``phase``; its result is the identity of the ShuttingDown it ended with."""

    async def work() -> int:
        try:
            with requests.running(name) as request:
                request.phase = phase
                await asyncio.Event().wait()
        except ShuttingDown as error:
            # The error event is written after this; a pending cancellation would interrupt it.
            await asyncio.sleep(0)
            return id(error)
        return 0

    return asyncio.create_task(work())


@pytest.mark.parametrize("phase", [RequestPhase.PREPARING, RequestPhase.WAITING])
async def test_what_the_engine_does_not_know_yet_is_told_that_the_server_leaves(
    phase: RequestPhase | None,
) -> None:
    requests = RequestRegistry(lambda: 0.0)
    first = open_one(requests, "a", phase)
    second = open_one(requests, "b", phase)
    await asyncio.sleep(0)
    assert requests.abort_arriving(leaving()) == 2
    assert requests.abort_arriving(leaving()) == 0
    ended = await first, await second
    assert 0 not in ended
    assert len(requests) == 0


async def test_what_the_engine_has_is_left_to_the_engine() -> None:
    requests = RequestRegistry(lambda: 0.0)
    task = open_one(requests, "a", None)
    await asyncio.sleep(0)
    assert requests.abort_arriving(leaving()) == 0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_client_that_left_at_the_same_time_is_not_answered() -> None:
    requests = RequestRegistry(lambda: 0.0)
    task = open_one(requests, "a", RequestPhase.PREPARING)
    await asyncio.sleep(0)
    requests.abort_arriving(leaving())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(requests) == 0


async def test_those_on_their_way_to_the_engine_are_counted_as_they_move() -> None:
    counts: list[int] = []
    requests = RequestRegistry(lambda: 0.0, changed=lambda: counts.append(requests.arriving))
    with requests.running("a") as first, requests.running("b"):
        requests.advance(first, RequestPhase.WAITING)
        requests.advance(first, None)
    assert counts == [1, 2, 2, 1, 0, 0]


async def test_a_request_is_seen_from_its_arrival_until_the_device_has_let_go_of_it() -> None:
    now = 10.0
    requests = RequestRegistry(lambda: now)
    with requests.running("a") as request:
        request.model_id = "m"
        now = 12.5
        early = RequestView("a", "m", RequestPhase.PREPARING, 2.5, prompt_total=None)
        assert requests.views() == (early,)
        requests.advance(request, None)
        assert (requests.views(), requests.arriving, len(requests)) == ((), 0, 1)
        generation = FakeGeneration(a_sequence("a"))
        requests.add(generation)
        with pytest.raises(ValueError, match="open already"):
            requests.add(FakeGeneration(a_sequence("a")))
    generation.cancel()
    (view,) = requests.views()
    assert (view.id, view.phase, view.prompt_total) == ("a", RequestPhase.QUEUED, 3)
    assert (requests.held(), requests.held("m"), requests.held("n")) == (1, 1, 0)
    requests.let_go("a", None)
    assert (requests.views(), requests.held(), len(requests)) == ((), 0, 0)


async def test_an_abort_ends_each_running_generation_with_an_error_of_its_own() -> None:
    requests = RequestRegistry(lambda: 0.0)
    first, second = FakeGeneration(a_sequence("a")), FakeGeneration(a_sequence("b"))
    requests.add(first)
    requests.add(second)
    assert requests.abort("other", leaving()) == 0
    assert requests.abort(None, leaving()) == 2
    assert requests.abort(None, leaving()) == 0
    assert first.cancelled_with is not second.cancelled_with
    assert requests.held() == 2
