"""One HTTP connection: uvicorn's, with limits on how many there are and how slow they may be."""

import asyncio
import json
from dataclasses import dataclass
from typing import ClassVar, Final

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from omlxd.units import KiB

log = structlog.get_logger(__name__)

LINGER: Final = 2.0
"""Seconds in which a client that was answered early may stop sending its body."""
AHEAD: Final = 64 * KiB
"""Bytes after a request that are kept while it is answered."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Attributes:
    most: open connections; further ones get 503.
    head_seconds: from the first byte of a request, or the opening, to the end of its headers.
    """

    most: int
    head_seconds: float


class Connection(H11Protocol):
    """uvicorn waits for ever for the head of a request, and for the rest of a body, and it does not
    see a client leave that has sent more than its request."""

    limits: ClassVar[ConnectionLimits]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._reading: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        if len(self.connections) > self.limits.most:
            log.warning("connection_refused", open=len(self.connections) - 1)
            self._refuse(503, "too_many_connections", "The server has too many connections open.")
            return
        self._give(self.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._enough()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            # The body has limits of its own, and its refusal another one.
            if not self._answered_early:
                self._enough()
        elif self.conn.trailing_data[0]:
            self._give(self.limits.head_seconds)

    def handle_events(self) -> None:
        super().handle_events()
        # uvicorn reads no further than to a second request: it would not see the client leave.
        if self.conn.their_state is h11.DONE and 0 < len(self.conn.trailing_data[0]) < AHEAD:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        early = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if early:
            self._give(LINGER)

    def shutdown(self) -> None:
        """As uvicorn's, which would wait for the rest of a body."""
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

    def _give(self, seconds: float) -> None:
        if self._reading is None and not self.transport.is_closing():
            self._reading = self.loop.call_later(seconds, self._too_slow)

    def _enough(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _too_slow(self) -> None:
        self._reading = None
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(408, "request_too_slow", "The head of the request took too long.")
        elif self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.close()

    def _refuse(self, status: int, code: str, message: str) -> None:
        """An answer made here, where the application has given none."""
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
    """The class of connections with these limits; uvicorn makes the objects."""

    class Limited(Connection):
        limits = within

    return Limited
