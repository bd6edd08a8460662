"""uvicorn on a socket that listens already, with its signal handling left to the daemon."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

HEADER_LIMIT = 64 * 1024
KEEP_ALIVE_SECONDS = 30


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone: ``serve()`` would raise SIGTERM again when it ends."""
        yield


class HttpServer:
    """The HTTP server of one application."""

    def __init__(self, app: Any, listener: socket.socket) -> None:
        self._server = _Server(
            uvicorn.Config(
                app,
                http="h11",
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
        self._listener = listener

    async def serve(self) -> None:
        """Serve until ``stop``; returns when connections are closed."""
        await self._server.serve(sockets=[self._listener])

    async def accepting(self) -> None:
        """Return once requests are answered."""
        await self._server.accepting.wait()

    def stop(self, limit: float) -> None:
        """Stop accepting; connections that outlast ``limit`` seconds are cancelled."""
        self._server.config.timeout_graceful_shutdown = max(1, round(limit))
        self._server.should_exit = True
