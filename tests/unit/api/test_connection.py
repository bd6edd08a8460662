"""Work that lasts as long as its client."""

import asyncio

import pytest
from starlette.types import Message

from omlxd.api.connection import COMMENT, ClientGone, EventStream, while_connected
from omlxd.api.options import ApiOptions
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


class Sent:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def send(self, message: Message) -> None:
        self.bodies.append(message.get("body", b""))


def a_stream(sent: Sent) -> EventStream:
    return EventStream(
        sent.send, ApiOptions(keep_alive_interval=10, hold_start=0, send_timeout=120)
    )


@pytest.fixture
def bounded_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop without a pause would hang the test instead of failing it."""
    turns = 0

    class Lock(asyncio.Lock):
        async def acquire(self) -> bool:  # type: ignore[override]
            nonlocal turns
            turns += 1
            assert turns < 100, "it turns without end"
            return await super().acquire()

    monkeypatch.setattr("omlxd.api.connection.asyncio.Lock", Lock)


@pytest.mark.usefixtures("bounded_turns")
async def test_a_stream_given_up_as_its_start_was_due_lets_the_loop_go_on() -> None:
    sent = Sent()
    stream = a_stream(sent)
    alive = asyncio.create_task(stream.keep_alive())
    await asyncio.sleep(0)
    assert stream.give_up_unopened()
    await alive
    assert sent.bodies == []


@pytest.mark.usefixtures("bounded_turns")
async def test_keeping_alive_ends_with_the_stream() -> None:
    sent = Sent()
    stream = a_stream(sent)
    await stream.open()
    await stream.close()
    before = list(sent.bodies)
    await asyncio.wait_for(stream.keep_alive(), 5)
    assert sent.bodies == before


@pytest.mark.usefixtures("bounded_turns")
async def test_a_comment_that_could_not_be_written_is_not_tried_again_at_once() -> None:
    sent = Sent()
    stream = a_stream(sent)
    await stream.open()
    stream._last_write -= 60

    async def nothing(body: bytes, *, last: bool = False) -> None:
        assert body == COMMENT
        sent.bodies.append(b"tried")

    stream._write = nothing  # type: ignore[method-assign]
    alive = asyncio.create_task(stream.keep_alive())
    for _ in range(20):
        await asyncio.sleep(0)
    alive.cancel()
    assert sent.bodies.count(b"tried") == 1
