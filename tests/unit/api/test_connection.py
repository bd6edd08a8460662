"""Work that lasts as long as its client."""

import asyncio

import pytest

from omlxd.api.connection import ClientGone, while_connected
from tests.support.asgi import post
from tests.support.fake_pool import Say, Wait, World


class Client:
    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_the_result_and_the_failure_of_the_work_come_through() -> None:
    async def works() -> int:
        return 7

    async def fails() -> int:
        raise KeyError("x")

    assert await while_connected(Client().receive, works()) == 7
    with pytest.raises(KeyError):
        await while_connected(Client().receive, fails())


async def test_work_has_cleaned_up_when_the_client_is_reported_gone() -> None:
    client, steps = Client(), []

    async def work() -> None:
        try:
            client.left.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("clean")

    with pytest.raises(ClientGone):
        await while_connected(client.receive, work())
    assert steps == ["clean"]


async def test_a_fault_while_cleaning_up_is_not_hidden() -> None:
    client = Client()

    async def work() -> None:
        try:
            client.left.set()
            await asyncio.Event().wait()
        finally:
            raise KeyError("fault")

    with pytest.raises(KeyError):
        await while_connected(client.receive, work())


async def test_a_companion_that_returns_ends_the_work() -> None:
    async def companion() -> None:
        return None

    with pytest.raises(ClientGone):
        await while_connected(Client().receive, asyncio.Event().wait(), companion())


async def test_work_cancelled_from_inside_is_a_fault_and_no_cancellation() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="cancelled from inside"):
        await while_connected(Client().receive, work())


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_cuts_a_request_frees_everything(stream: bool) -> None:
    """T73: past the limit of a drain the HTTP server cancels what is left."""
    world = World()
    world.pool.scripts.append([Say("a"), Wait()])
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream}
    call = post(world.app, "/v1/chat/completions", body).start()
    await world.pool.reading.wait()
    assert call._task is not None
    call._task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.end()
    assert world.pool.acquired == world.pool.released == 1
    assert world.pool.generations[0].cancelled
