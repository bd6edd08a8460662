"""The connection to a client: work that ends when it leaves, and streams of events."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omlxd.api.options import ApiOptions
from omlxd.errors import OmlxdError

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


async def disconnected(receive: Receive) -> None:
    """Returns when the client has left. The body of the request must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(
    receive: Receive, work: Coroutine[Any, Any, T], *companions: Coroutine[Any, Any, None]
) -> T:
    """The result of ``work``. It is cancelled when the client leaves or a companion returns.

    Raises what ``work`` raises, and ClientGone when it was cancelled, after it has cleaned up.
    """
    worker = asyncio.create_task(work)
    others = [asyncio.create_task(other) for other in (disconnected(receive), *companions)]
    try:
        await asyncio.wait((worker, *others), return_when=asyncio.FIRST_COMPLETED)
    finally:
        # No task may outlive the request, also when this task is cancelled.
        gone = not worker.done()
        for task in (worker, *others):
            task.cancel()
        await asyncio.gather(worker, *others, return_exceptions=True)
    for task in others:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    if gone and (worker.cancelled() or isinstance(worker.exception(), OmlxdError | None)):
        raise ClientGone
    if worker.cancelled():
        raise RuntimeError("the work was cancelled from inside")
    return worker.result()


class Exchange(Response):
    """An answer that the coroutine ``work`` writes with ASGI's ``receive`` and ``send``.

    An error that ``work`` raises before it has sent anything becomes an error answer.
    """

    def __init__(self, work: Callable[[Receive, Send], Awaitable[None]]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._work(receive, send)


HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
COMMENT: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"


def data_event(data: bytes) -> bytes:
    """One server-sent event without a name. ``data`` is one line."""
    return b"data: " + data + b"\n\n"


class EventStream:
    """The body of one streamed answer. Nothing is sent before ``open`` or the first event.

    The task that writes must run beside ``keep_alive``. That opens the stream when nothing was
    written for ``hold_start`` seconds, so that clients with a time limit stay. It returns when the
    client has read nothing for ``send_timeout`` seconds.
    """

    def __init__(self, send: Send, options: ApiOptions) -> None:
        self._send = send
        self._interval = options.keep_alive_interval
        self._hold_start = options.hold_start
        self._send_timeout = options.send_timeout
        self._turn = asyncio.Lock()
        self._last_write = 0.0
        self._writing_since: float | None = None
        self._closed = False
        self._started = asyncio.Event()

    @property
    def opened(self) -> bool:
        return self._started.is_set()

    async def open(self) -> None:
        """Send status 200, the headers and a comment, unless something was sent before."""
        if not self.opened:
            await self._write(COMMENT)

    async def write(self, events: bytes) -> None:
        await self._write(events)

    def give_up_unopened(self) -> bool:
        """True when nothing was sent. Then nothing will be, and the caller may send an answer."""
        if not self.opened:
            self._closed = True
        return not self.opened

    async def close(self, last: bytes = DONE) -> None:
        """Send the last events, and end the body."""
        await self._write(last, last=True)

    async def keep_alive(self) -> None:
        """Send comments while nothing else is sent, until the stream is closed or given up.

        Returns early when the client has stopped reading.
        """
        try:
            async with asyncio.timeout(self._hold_start):
                await self._started.wait()
        except TimeoutError:
            if not await self._comment():
                return
        # Every round sleeps: a round without a pause would block the event loop.
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
        """False when the client did not read it in time."""
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
