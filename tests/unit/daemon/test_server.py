"""The HTTP server's start and stop, without a socket."""

import asyncio
import json

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from omlxd.daemon.connection import Connection, ConnectionLimits, connections_within
from omlxd.daemon.server import HttpServer
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
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 8484)})
        self.written = b""
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def connected(application: ASGIApp) -> tuple[Connection, Wire, ServerState]:
    """A connection on which the head of a POST and one byte of its body have come."""
    wire, state = Wire(), ServerState()
    config = uvicorn.Config(application, log_config=None, lifespan="off")
    make = connections_within(ConnectionLimits(8, 20.0))
    connection = make(config, state, {}, asyncio.get_running_loop())
    connection.connection_made(wire)
    connection.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{")
    return connection, wire, state


async def test_the_rest_of_a_body_is_not_waited_for_when_the_server_leaves() -> None:
    """One unfinished upload held up every stop until its limit."""
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
