"""Sees to it that memory which the device thread has freed really comes free, and how much did."""

import asyncio

import structlog

from omlxd.pool.options import PoolOptions
from omlxd.pool.protocol import PoolPorts
from omlxd.timing import pause
from omlxd.units import MiB

log = structlog.get_logger(__name__)

SETTLE_STEP = 0.1
"""Seconds between two looks at memory that is coming free."""
SETTLED = 0.95
"""Share of the freed bytes that must show before the next load."""
UPS_AND_DOWNS = 32 * MiB
"""Bytes by which the process grows and shrinks whatever its models do."""


class Release:
    def __init__(self, options: PoolOptions, ports: PoolPorts) -> None:
        self._options = options
        self._ports = ports

    def beyond_allocator(self) -> int | None:
        """Bytes of the process that the allocator does not hold, so whatever other models do."""
        usage, sample = self._ports.usage(), self._ports.engine.latest_sample
        if usage is None or sample is None:
            return None
        return usage - sample.active - sample.buffer_cache

    async def settled(self, before: int | None, freed: int) -> int:
        """Bytes that really came free: waits until they show, or the limit has passed.

        ``before``: what ``beyond_allocator`` was while the allocator had them. Raises what the
        engine raises when it is over.
        """
        if self._ports.release_memory is not None:
            await asyncio.to_thread(self._ports.release_memory)
        await self._ports.engine.sample()
        until = self._ports.clock() + self._options.settle_limit
        tolerated = max(int((1 - SETTLED) * freed), UPS_AND_DOWNS)
        while before is not None and (now := self.beyond_allocator()) is not None:
            kept = max(0, now - before)
            if kept <= tolerated:
                return max(0, freed - kept)
            if self._ports.clock() >= until:
                log.warning("freed_memory_not_seen", expected=freed, seen=freed - kept)
                return max(0, freed - kept)
            await pause(self._ports.call_later, SETTLE_STEP)
        return freed
