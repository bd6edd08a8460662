"""One stream of server-sent events: its start, its events, and comments against silence."""

import asyncio
from typing import Final

from starlette.types import Send

HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
COMMENT: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"


class EventStream:
    """The body of one streamed answer. Nothing is on the wire before ``open``.

    Whoever writes must run beside ``keep_alive``, which opens the stream by itself when the
    work takes longer than ``hold_start`` seconds, so that clients with a time limit stay, and
    which returns when the client has not read for ``send_timeout`` seconds.
    """

    def __init__(
        self, send: Send, *, interval: float, hold_start: float, send_timeout: float
    ) -> None:
        self._send = send
        self._interval = interval
        self._hold_start = hold_start
        self._send_timeout = send_timeout
        self._turn = asyncio.Lock()
        self._last_write = 0.0
        self._writing_since: float | None = None
        self._closed = False
        self._started = asyncio.Event()

    @property
    def opened(self) -> bool:
        return self._started.is_set()

    async def open(self) -> None:
        """Send status 200, the headers and a comment, when nothing was sent before."""
        if not self.opened:
            await self._write(COMMENT)

    async def event(self, data: bytes) -> None:
        await self._write(b"data: " + data + b"\n\n")

    def give_up_unopened(self) -> bool:
        """True when nothing was sent; then nothing will be, so that the caller may answer."""
        if not self.opened:
            self._closed = True
        return not self.opened

    async def close(self) -> None:
        """The terminating ``[DONE]`` and the end of the body."""
        await self._write(DONE, last=True)

    async def keep_alive(self) -> None:
        """Runs until the stream is closed or given up; returns early when the client stopped
        reading."""
        try:
            async with asyncio.timeout(self._hold_start):
                await self._started.wait()
        except TimeoutError:
            if not await self._comment():
                return
        # Ends once closed, and sleeps in each turn: a loop that only turns would hold up them all.
        while not self._closed:
            if self._writing_since is not None:
                left = self._writing_since + self._send_timeout - _now()
                if left <= 0:
                    return
            else:
                left = self._last_write + self._interval - _now()
                if left <= 0:
                    if not await self._comment():
                        return
                    left = self._interval
            await asyncio.sleep(min(left, self._interval))

    async def _comment(self) -> bool:
        """False when the client did not take it in time."""
        try:
            async with asyncio.timeout(self._send_timeout):
                await self._write(COMMENT)
        except TimeoutError:
            return False
        return True

    async def _write(self, body: bytes, *, last: bool = False) -> None:
        async with self._turn:
            if self._closed:
                return
            self._writing_since = _now()
            if not self.opened:
                self._started.set()
                await self._send(
                    {"type": "http.response.start", "status": 200, "headers": list(HEADERS)}
                )
            await self._send({"type": "http.response.body", "body": body, "more_body": not last})
            self._closed = last
            self._writing_since = None
            self._last_write = _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
