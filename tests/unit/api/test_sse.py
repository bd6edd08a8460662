"""The life of one stream of events."""

import asyncio

import pytest
from starlette.types import Message

from omlxd.api.options import ApiOptions
from omlxd.api.sse import COMMENT, EventStream


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
    """A loop that turns without suspending would hang the test instead of failing it."""
    turns = 0

    class Lock(asyncio.Lock):
        async def acquire(self) -> bool:  # type: ignore[override]
            nonlocal turns
            turns += 1
            assert turns < 100, "it turns without end"
            return await super().acquire()

    monkeypatch.setattr("omlxd.api.sse.asyncio.Lock", Lock)


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
