"""The list of open requests: their stages, and their end when the daemon leaves."""

import asyncio

import pytest

from omlxd.api.open_requests import OpenRequests, Stage
from omlxd.errors import OmlxdError, ShuttingDown


def leaving() -> OmlxdError:
    return ShuttingDown("The server is shutting down.")


def open_one(requests: OpenRequests, name: str, stage: Stage) -> asyncio.Task[int]:
    """A request in ``stage``; its result is the identity of the ShuttingDown it ended with."""

    async def work() -> int:
        try:
            with requests.tracked(name) as entry:
                entry.stage = stage
                await asyncio.Event().wait()
        except ShuttingDown as error:
            # The error event is written after it; a cancellation left pending would cut it.
            await asyncio.sleep(0)
            return id(error)
        return 0

    return asyncio.create_task(work())


@pytest.mark.parametrize("stage", [Stage.PREPARING, Stage.WAITING])
async def test_what_the_engine_does_not_know_yet_is_told_that_the_server_leaves(
    stage: Stage,
) -> None:
    requests = OpenRequests(lambda: 0.0)
    first = open_one(requests, "a", stage)
    second = open_one(requests, "b", stage)
    await asyncio.sleep(0)
    assert requests.abort(leaving()) == 2
    assert requests.abort(leaving()) == 0
    ended = await first, await second
    assert 0 not in ended
    assert len(requests) == 0


async def test_what_the_engine_has_is_left_to_the_engine() -> None:
    requests = OpenRequests(lambda: 0.0)
    task = open_one(requests, "a", Stage.ENGINE)
    await asyncio.sleep(0)
    assert requests.abort(leaving()) == 0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_client_that_left_at_the_same_time_is_not_answered() -> None:
    requests = OpenRequests(lambda: 0.0)
    task = open_one(requests, "a", Stage.PREPARING)
    await asyncio.sleep(0)
    requests.abort(leaving())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(requests) == 0


async def test_those_on_their_way_to_the_engine_are_counted_as_they_move() -> None:
    counts: list[int] = []
    requests = OpenRequests(lambda: 0.0, changed=lambda: counts.append(requests.coming))
    with requests.tracked("a") as first, requests.tracked("b"):
        requests.advance(first, Stage.WAITING)
        requests.advance(first, Stage.ENGINE)
    assert counts == [1, 2, 2, 1, 0, 0]
