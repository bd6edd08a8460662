"""The phase of the daemon's life, and waiting for its requests to end."""

import asyncio
from collections.abc import Callable

from omlxd.api.services import Phase

IDLE_POLL = 0.02


class Life:
    """Starting, ready, draining: in this order, never back."""

    def __init__(self, open_requests: Callable[[], int]) -> None:
        self._phase = Phase.STARTING
        self._open_requests = open_requests

    @property
    def phase(self) -> Phase:
        return self._phase

    def started(self) -> None:
        if self._phase is Phase.STARTING:
            self._phase = Phase.READY

    def drain(self) -> None:
        self._phase = Phase.DRAINING

    async def idle(self, limit: float, hurry: asyncio.Event) -> bool:
        """Wait until no request is open; False after ``limit`` seconds or once ``hurry`` is set."""
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        while self._open_requests():
            if hurry.is_set() or loop.time() >= end:
                return False
            await asyncio.sleep(IDLE_POLL)
        return True
