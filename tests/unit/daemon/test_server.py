"""The HTTP server's start, without a socket."""

import asyncio

import pytest

from omlxd.daemon.connection import ConnectionLimits
from omlxd.daemon.server import HttpServer


async def test_a_server_that_cannot_start_is_not_waited_for() -> None:
    no_socket: list[object] = [object()]
    server = HttpServer(None, no_socket, ConnectionLimits(8, 20.0))  # type: ignore[arg-type]
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(5):
        await server.accepting()
    with pytest.raises(AttributeError):
        await serving
