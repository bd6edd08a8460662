"""Reads the host and the allocator for the guard, and logs when a source fails."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

import structlog

from omlxd.enforcer.options import WiredLimit
from omlxd.engine.handle import Engine
from omlxd.errors import OmlxdError
from omlxd.host.clock import SleepWatch
from omlxd.host.protocol import DeviceMemory, Host, RuntimeMemory
from omlxd.policy.ceiling import static_term
from omlxd.policy.readings import AllocatorSample, MemoryReading, Source
from omlxd.policy.tiers import Tier

log = structlog.get_logger(__name__)

FRESH = 0.1
"""Seconds for which the last sample of the device thread is used instead of a new one."""
SAMPLE_LIMIT = 0.1
"""Seconds that a tick waits for a new sample; an idle device thread answers much sooner."""


class HostReader:
    """Reads the host for one caller at a time. Logs when the host slept or a source failed."""

    def __init__(self, host: Host, sleep: SleepWatch, woke_up: Callable[[], None]) -> None:
        """``woke_up`` is called from the reading's thread after the machine slept."""
        self._host = host
        self._sleep = sleep
        self._woke_up = woke_up
        self._degraded: tuple[str, ...] = ()
        # Readings and releases of free memory come from different threads.
        self._turn = threading.Lock()

    def read(self, now: float) -> MemoryReading:
        """Call it in a thread. Raises what ``Host.read`` raises."""
        with self._turn:
            slept = self._sleep.slept()
            reading = self._host.read(now)
            if reading.degraded != self._degraded:
                self._degraded = reading.degraded
                write = log.warning if reading.degraded else log.info
                write("reading_degraded", lines=list(reading.degraded))
        if slept:
            log.info("woke_up", slept_seconds=round(slept, 1))
            self._woke_up()
        return reading

    def release_free_memory(self) -> int | None:
        """Call it in a thread. Returns the bytes the C allocator gave back; None when unknown."""
        with self._turn:
            return self._host.release_free_memory()

    async def release(self) -> int | None:
        return await asyncio.to_thread(self.release_free_memory)


class AllocatorSampler:
    """MLX's memory numbers, sampled by the device thread. No other thread may call MLX."""

    def __init__(
        self, engine: Engine, clock: Callable[[], float], working: Callable[[], bool]
    ) -> None:
        """``working``: the device thread has work, so it takes a sample after each step."""
        self._engine = engine
        self._clock = clock
        self._working = working

    @property
    def up(self) -> bool:
        return self._engine.info is not None

    @property
    def latest(self) -> AllocatorSample | None:
        """The last sample. While there is no work nothing changes, so its time is now."""
        latest = self._engine.latest_sample
        if latest is None or self._working():
            return latest
        return replace(latest, taken_at=self._clock())

    async def sample(self) -> AllocatorSample | None:
        """A new sample if the device thread is idle, else the last one; never waits for a step."""
        engine = self._engine
        latest = engine.latest_sample
        if latest is None or self._working() or self._clock() - latest.taken_at <= FRESH:
            return latest
        try:
            async with asyncio.timeout(SAMPLE_LIMIT):
                return await engine.sample()
        except (TimeoutError, OmlxdError):
            return engine.latest_sample

    def memory(self) -> RuntimeMemory:
        """The facts about the runtime that the host layer needs."""
        return RuntimeMemory(working_set=self._working_set, device=self._device)

    def _working_set(self) -> int | None:
        info = self._engine.info
        return None if info is None else info.recommended_working_set

    def _device(self) -> DeviceMemory | None:
        info, sample = self._engine.info, self._engine.latest_sample
        if info is None or not info.own_memory or info.memory_total is None or sample is None:
            return None
        return DeviceMemory(
            taken_at=sample.taken_at,
            total=info.memory_total,
            free=sample.device_free,
            used=sample.active + sample.buffer_cache,
        )


def with_footprints(
    reading: MemoryReading, footprint: int | None, graphics: int | None, now: float
) -> MemoryReading:
    """``reading`` with this process's footprint and its graphics part, as of ``now``."""
    if footprint is None:
        return reading
    source = Source("own footprint", now)
    sources = {**reading.sources, "footprint": source, "graphics_footprint": source}
    return replace(
        reading,
        footprint=footprint,
        graphics_footprint=graphics,
        sources=MappingProxyType(sources),
    )


def wired_limit(wanted: WiredLimit | int, kernel_limit: int | None, static: int) -> int | None:
    """Bytes that the GPU driver is to keep resident; None leaves the driver alone.

    ``kernel_limit``: the limit that the user set in the kernel, in bytes. 0 is the driver's
    default; None is unknown, or no such limit here. ``static``: RAM minus the tier's reserve.
    """
    match wanted:
        case WiredLimit.OFF:
            return None
        case WiredLimit.AUTO:
            # The user did not raise the driver's limit; wiring up to it would starve the system.
            return min(static, kernel_limit) if kernel_limit else None
        case _:
            return None if kernel_limit is None else min(wanted, static)


def wired_limit_at_start(
    wanted: WiredLimit | int, tier: Tier, open_host: Callable[[], Host]
) -> int | None:
    """Bytes that the runtime is to wire. None: leave it alone, also when the host is unreadable."""
    if wanted is WiredLimit.OFF:
        return None
    try:
        host = open_host()
        return wired_limit(wanted, host.wired_limit(), static_term(host.total_memory(), tier))
    except (OSError, ValueError) as error:
        log.warning("wired_limit_unknown", reason=str(error))
        return None
