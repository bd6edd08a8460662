"""uvicorn on sockets that listen already, with its signal handling left to the daemon."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn

from omlxd.daemon.connection import ConnectionLimits, connections_within

HEADER_LIMIT = 64 * 1024
KEEP_ALIVE_SECONDS = 30
DATE_SECONDS = 1.0
"""Between two looks at the clock for the ``date`` header."""


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()
        self.ending = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    async def main_loop(self) -> None:
        """As uvicorn's, which wakes ten times a second to see whether it should end."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), DATE_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone: ``serve()`` would raise SIGTERM again when it ends."""
        yield


class HttpServer:
    """The HTTP server of one application."""

    def __init__(
        self, app: Any, listeners: Sequence[socket.socket], limits: ConnectionLimits
    ) -> None:
        self._server = _Server(
            uvicorn.Config(
                app,
                http=connections_within(limits),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                h11_max_incomplete_event_size=HEADER_LIMIT,
            )
        )
        self._listeners = list(listeners)

    async def serve(self) -> None:
        """Serve until ``stop``; returns when connections are closed."""
        try:
            await self._server.serve(sockets=self._listeners)
        finally:
            self._server.accepting.set()

    async def accepting(self) -> None:
        """Return once requests are answered, or never will be."""
        await self._server.accepting.wait()

    def stop(self, limit: float) -> None:
        """Stop accepting; connections that outlast ``limit`` seconds are cancelled."""
        self._server.config.timeout_graceful_shutdown = max(1, round(limit))
        self._server.should_exit = True
        self._server.ending.set()
