"""The HTTP server's start, without a socket."""

import asyncio

import pytest

from omlxd.daemon.connection import ConnectionLimits
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
