"""Small writes leave at once: headers and body of an answer are two of them."""

import asyncio
import socket

import pytest

from omlxd.daemon.listen import listen

pytestmark = pytest.mark.alone


async def test_accepted_connections_do_not_wait_for_acknowledgements() -> None:
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = listen("127.0.0.1", 0)
    async with await asyncio.start_server(note, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert await asyncio.wait_for(accepted, 5) != 0
        writer.close()
        await writer.wait_closed()
