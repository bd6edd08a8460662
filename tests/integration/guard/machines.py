"""Simulated machines with models of every size on them, and how a test runs one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from omlxd.pool.options import PoolOptions
from omlxd.units import GiB
from tests.support.guard_invariants import Watch
from tests.support.simulated_daemon import SimulatedDaemon, Troubles
from tests.support.simulated_mac import ModelShape
from tests.support.virtual_time import run_virtually


def a_mac(size: int, **more: Any) -> SimulatedDaemon:
    """A machine of ``size`` GiB with other apps on it, and models from small to too large."""
    total = size * GiB
    shares = {"small": 0.04, "other": 0.05, "middle": 0.12, "big": 0.3, "huge": 0.5, "absurd": 1.1}
    shapes = {
        name: ModelShape(
            weights=int(total * share),
            kv_token=int(total * share / 40_000),
            transient_token=int(total * share / 20_000),
            piece_seconds=0.3 + share,
            prefill_seconds=0.0005 + share / 200,
        )
        for name, share in shares.items()
    }
    more.setdefault("pool_options", PoolOptions(scan_every=None, idle_timeout=600.0))
    return SimulatedDaemon(
        total,
        shapes,
        wired=int(0.05 * total),
        apps=int(0.15 * total),
        idle_apps=int(0.05 * total),
        file_cache=int(0.2 * total),
        **more,
    )


def played(scene: Callable[[SimulatedDaemon, Watch], Awaitable[None]], **more: Any) -> None:
    """Run ``scene`` on a machine of 128 GiB; the invariants hold at its end."""

    async def play() -> None:
        more.setdefault("pool_options", PoolOptions(scan_every=None))
        daemon = a_mac(more.pop("size", 128), **more)
        watch = Watch(daemon)
        await daemon.start()
        await scene(daemon, watch)
        assert watch.broken == []
        await daemon.stop()

    with Troubles() as troubles:
        run_virtually(play())
    assert troubles.records == []


async def loaded(daemon: SimulatedDaemon, *models: str) -> None:
    for model in models:
        assert await daemon.ask(model) == "finished"


async def until(true: Callable[[], bool], seconds: float) -> None:
    """Raises TimeoutError when ``true()`` does not come to be within that virtual time."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.1)
