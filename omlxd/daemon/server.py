"""The HTTP server: uvicorn on sockets that listen already, with limits on its connections."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import h11
import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from omlxd.units import KiB

log = structlog.get_logger(__name__)

LINGER: Final = 2.0
"""Seconds that a client may still send its body after the answer is complete."""
AHEAD: Final = 64 * KiB
"""Bytes of the next request that are read while the current one is answered."""
HEADER_LIMIT = 64 * 1024
KEEP_ALIVE_SECONDS = 30
DATE_SECONDS = 1.0
"""Seconds between two updates of the ``date`` header."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Attributes:
    most: the maximum of open connections; further ones get 503.
    head_seconds: how long the headers of a request may take, from its first byte or from the
        opening of the connection.
    """

    most: int
    head_seconds: float


class Connection(H11Protocol):
    """As uvicorn's, with time limits for headers and for the rest of a body.

    It also sees that a client has left which had sent more than one request."""

    limits: ClassVar[ConnectionLimits]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        if len(self.connections) > self.limits.most:
            log.warning("connection_refused", open=len(self.connections) - 1)
            self._refuse(503, "too_many_connections", "The server has too many connections open.")
            return
        self._start_timer(self.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            # The body has its own limits. After an early answer the timer is LINGER.
            if not self._answered_early:
                self._stop_timer()
        elif self.conn.trailing_data[0]:
            self._start_timer(self.limits.head_seconds)

    def handle_events(self) -> None:
        super().handle_events()
        # uvicorn stops reading at a second request, so it would not see the client leave.
        if self.conn.their_state is h11.DONE and 0 < len(self.conn.trailing_data[0]) < AHEAD:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        early = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if early:
            self._start_timer(LINGER)

    def shutdown(self) -> None:
        """As uvicorn's, but it does not wait for the rest of a body."""
        unfinished = self.cycle is not None and not self.cycle.response_started
        if unfinished and self.conn.their_state is h11.SEND_BODY:
            log.warning("request_refused", code="shutting_down", reason="its body never ended")
            self._refuse(503, "shutting_down", "The server is shutting down.")
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        text = "This is not valid HTTP, or the head of the request is too large."
        self._refuse(400, "invalid_http", text)

    @property
    def _answered_early(self) -> bool:
        return self.cycle is not None and self.cycle.response_complete

    def _start_timer(self, seconds: float) -> None:
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(408, "request_too_slow", "The head of the request took too long.")
        elif self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.close()

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer here, because the application did not see the request or did not answer."""
        kind = "service_unavailable" if status == 503 else "invalid_request_error"
        error = {"message": message, "type": kind, "param": None, "code": code}
        body = json.dumps({"error": error}).encode()
        head = (
            f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n"
        ) + ("retry-after: 1\r\n" if status == 503 else "")
        self.transport.write(head.encode() + b"\r\n" + body)
        self.transport.close()


def connections_within(within: ConnectionLimits) -> type[Connection]:
    """A class of connections with these limits; uvicorn makes the objects itself."""

    class Limited(Connection):
        limits = within

    return Limited


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()
        self.ending = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    async def main_loop(self) -> None:
        """Replaces uvicorn's loop, which wakes up ten times a second to check for the end."""
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
        """Serve until ``stop``; returns when all connections are closed."""
        try:
            await self._server.serve(sockets=self._listeners)
        finally:
            self._server.accepting.set()

    async def accepting(self) -> None:
        """Return when requests are answered, or when the server has failed to start."""
        await self._server.accepting.wait()

    def stop(self, limit: float) -> None:
        """Stop accepting; connections still open after ``limit`` seconds are cancelled."""
        self._server.config.timeout_graceful_shutdown = max(1, round(limit))
        self._server.should_exit = True
        self._server.ending.set()
