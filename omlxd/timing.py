"""Timers on the event loop: call later, pause, and an alarm that can be set again."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


def loop_call_later(delay: float, callback: Callable[[], None]) -> Timer:
    """Call later in an empty context, so the log does not name the request that set the timer."""
    return asyncio.get_running_loop().call_later(delay, callback, context=Context())


async def pause(call_later: CallLater, seconds: float) -> None:
    """Sleep, using a timer of ``call_later``."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end() -> None:
        if not over.done():
            over.set_result(None)

    timer = call_later(seconds, end)
    try:
        await over
    finally:
        timer.cancel()


class Alarm:
    """Calls ``ring`` at the time that was set last."""

    def __init__(
        self, clock: Callable[[], float], call_later: CallLater, ring: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._ring = ring
        self._timer: Timer | None = None
        self._due: float | None = None

    def set(self, due: float | None) -> None:
        """``None`` switches it off."""
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, due
        if due is not None:
            self._timer = self._call_later(max(0.0, due - self._clock()), self._fire)

    def _fire(self) -> None:
        self._timer = self._due = None
        self._ring()
