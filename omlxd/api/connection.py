"""Doing work only as long as the client is there."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omlxd.errors import OmlxdError

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


async def disconnected(receive: Receive) -> None:
    """Returns when the client is gone. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(
    receive: Receive, work: Coroutine[Any, Any, T], *companions: Coroutine[Any, Any, None]
) -> T:
    """The result of ``work``, cancelled when the client leaves or a companion returns.

    Raises ClientGone in that case, after ``work`` has cleaned up; also what ``work`` raises.
    """
    worker = asyncio.create_task(work)
    others = [asyncio.create_task(other) for other in (disconnected(receive), *companions)]
    try:
        await asyncio.wait((worker, *others), return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Also when this task itself is cancelled: nothing may outlive the request.
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
    """An answer that is written by a coroutine of its own, for as long as the client is there.

    ``work`` gets ASGI's ``send`` and ``receive``. What it raises before the answer has begun
    becomes an error answer.
    """

    def __init__(self, work: Callable[[Receive, Send], Awaitable[None]]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._work(receive, send)
