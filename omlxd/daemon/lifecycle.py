"""The phase of the daemon's life, and waiting for its requests to end."""

import asyncio
from collections.abc import Callable

from omlxd.api.services import ServerPhase

IDLE_POLL = 0.02


class Lifecycle:
    """Starting, ready, draining: in this order, never back."""

    def __init__(self, open_requests: Callable[[], int]) -> None:
        self._phase = ServerPhase.STARTING
        self._open_requests = open_requests

    @property
    def phase(self) -> ServerPhase:
        return self._phase

    def started(self) -> None:
        if self._phase is ServerPhase.STARTING:
            self._phase = ServerPhase.READY

    def drain(self) -> None:
        self._phase = ServerPhase.DRAINING

    async def idle(self, limit: float, hurry: asyncio.Event) -> bool:
        """Wait until no request is open; False after ``limit`` seconds or once ``hurry`` is set."""
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        while self._open_requests():
            if hurry.is_set() or loop.time() >= end:
                return False
            await asyncio.sleep(IDLE_POLL)
        return True
