"""The HTTP server's start and stop, without a socket."""

import asyncio
import json

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from omlxd.daemon.server import Connection, ConnectionLimits, HttpServer, connections_within
from tests.support.virtual_time import run_virtually


async def test_a_server_that_cannot_start_is_not_waited_for() -> None:
    no_socket: list[object] = [object()]
    server = HttpServer(None, no_socket, ConnectionLimits(8, 20.0))  # type: ignore[arg-type]
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(5):
        await server.accepting()
    with pytest.raises(AttributeError):
        await serving


def test_an_idle_server_wakes_once_a_second_and_stops_at_once() -> None:
    """The budget is 1 % of a core with a model in memory and nothing to do."""

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        looks: list[float] = []
        server = HttpServer(None, [], ConnectionLimits(8, 20.0))
        inner = server._server
        on_tick = inner.on_tick

        async def counted(counter: int) -> bool:
            looks.append(loop.time())
            return await on_tick(counter)

        inner.on_tick = counted  # type: ignore[method-assign]
        serving = asyncio.create_task(server.serve())
        await server.accepting()
        await asyncio.sleep(60.5)
        assert 58 <= len(looks) <= 62
        assert inner.server_state.default_headers[0][0] == b"date"
        asked = loop.time()
        server.stop(5.0)
        await serving
        assert loop.time() - asked < 0.2

    run_virtually(scene())


class Wire(asyncio.Transport):
    """Keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 8484)})
        self.written = b""
        self.closing = False
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


PART = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{"
"""The head of a request and one byte of its body."""
WHOLE = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


def connected(application: ASGIApp, received: bytes = PART) -> tuple[Connection, Wire, ServerState]:
    wire, state = Wire(), ServerState()
    config = uvicorn.Config(application, log_config=None, lifespan="off")
    make = connections_within(ConnectionLimits(8, 20.0))
    connection = make(config, state, {}, asyncio.get_running_loop())
    connection.connection_made(wire)
    connection.data_received(received)
    return connection, wire, state


async def test_the_rest_of_a_body_is_not_waited_for_when_the_server_leaves() -> None:
    """An unfinished upload once delayed every stop until its limit."""
    bodies: list[str] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            bodies.append("part")
        bodies.append(message["type"])

    connection, wire, state = connected(application)
    await asyncio.sleep(0)
    assert bodies == ["part"]
    connection.shutdown()
    head, _, body = wire.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in head
    assert json.loads(body)["error"]["code"] == "shutting_down"
    assert wire.closing
    connection.connection_lost(None)
    await asyncio.gather(*state.tasks)
    assert bodies == ["part", "http.disconnect"]


async def test_an_answer_that_has_begun_is_finished_when_the_server_leaves() -> None:
    go_on = asyncio.Event()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"whole"})

    connection, wire, state = connected(application)
    await asyncio.sleep(0)
    connection.shutdown()
    assert not wire.closing
    go_on.set()
    await asyncio.gather(*state.tasks)
    assert wire.written.endswith(b"whole\r\n0\r\n\r\n")
    assert wire.closing


@pytest.mark.parametrize("more", [b"\r\n", WHOLE, WHOLE + WHOLE[:9]])
@pytest.mark.parametrize("together", [True, False])
async def test_a_client_that_sent_more_than_its_request_is_seen_to_leave(
    more: bytes, together: bool
) -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    connection, wire, state = connected(application, WHOLE + more if together else WHOLE)
    if not together:
        await asyncio.sleep(0)
        connection.data_received(more)
    await asyncio.sleep(0)
    assert wire.reading
    connection.connection_lost(None)
    await asyncio.gather(*state.tasks)


async def test_requests_sent_ahead_are_all_answered_and_their_client_seen_to_leave() -> None:
    left = asyncio.Event()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if scope["path"] == "/waits":
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"answer"})

    waits = WHOLE.replace(b"/ ", b"/waits ", 1)
    connection, wire, state = connected(application, WHOLE + WHOLE + waits + WHOLE)
    for _ in range(5):
        await asyncio.sleep(0)
    assert wire.written.count(b"answer") == 2
    assert wire.reading
    connection.connection_lost(None)
    await asyncio.gather(*state.tasks)
    assert left.is_set()


async def test_what_is_sent_ahead_without_end_is_not_read() -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    connection, wire, state = connected(application, WHOLE)
    await asyncio.sleep(0)
    connection.data_received(b"x" * 40_000)
    assert wire.reading
    connection.data_received(b"x" * 40_000)
    assert not wire.reading
    connection.connection_lost(None)
    await asyncio.gather(*state.tasks)
