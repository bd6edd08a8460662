"""The whole core of the daemon on simulated Macs, through hours of random trouble.

The scripts are seeded, and time is virtual. The invariants of ``guard_invariants`` hold after
every tick, and once the trouble is over the daemon is as good as new.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from omlxd.errors import OmlxdError
from omlxd.policy.pressure import Level
from omlxd.units import GiB
from tests.integration.guard.machines import a_mac
from tests.support.guard_invariants import Watch
from tests.support.simulated_daemon import SimulatedDaemon, Troubles
from tests.support.simulated_mac import CRITICAL
from tests.support.virtual_time import run_virtually

SIZES = (8, 16, 32, 64, 128, 512)
LEAST_TICKS = 1000
SEEDS = (1, 2)
DEEP_SEEDS = 20

EXPECTED_ERRORS = {
    "memory_pressure",
    "memory_pressure_aborted",
    "insufficient_memory",
    "model_too_large",
    "model_unloading",
    "model_load_cancelled",
    "queue_full",
}


class Script:
    """Random trouble, the same for the same seed."""

    def __init__(self, daemon: SimulatedDaemon, seed: int) -> None:
        self.daemon = daemon
        self.random = random.Random(seed)
        self.usual_apps = daemon.mac.apps
        self.clients: dict[asyncio.Task[Any], None] = {}
        """In order of their arrival."""
        self.scenes: tuple[Callable[[], Awaitable[None]], ...] = (
            self.apps_grow,
            self.apps_recede,
            self.apps_spike,
            self.counters_fail,
            self.counters_freeze,
            self.footprint_fails,
            self.pool_swells,
            self.machine_sleeps,
            self.system_is_critical,
            self.requests_burst,
            self.requests_burst,
            self.clients_leave,
            self.pins_change,
            self.owner_loads_and_unloads,
            self.policy_changes,
            self.wakes_burst,
            self.device_is_slow,
            self.quiet,
        )

    async def scene(self) -> None:
        await self.random.choice(self.scenes)()
        for _ in range(self.random.randrange(6)):
            self.send()
        await asyncio.sleep(self.random.uniform(1, 30))

    def send(self) -> None:
        draw = self.random
        model = draw.choices(tuple(self.daemon.shapes), (6, 5, 4, 3, 2, 1))[0]
        request = self.daemon.ask(
            model,
            prompt=draw.choice((10, 200, 1000, 6000)),
            tokens=draw.choice((1, 20, 100)),
            hold=draw.choice((0.0, 0.0, 0.5, 3.0)),
            deadline=draw.choice((None, 5.0, 60.0)),
        )
        self.follow(asyncio.create_task(request))

    def follow(self, task: asyncio.Task[Any]) -> None:
        self.clients[task] = None
        task.add_done_callback(self.clients.pop)

    async def apps_grow(self) -> None:
        mac = self.daemon.mac
        goal = int(mac.total * self.random.uniform(0.3, 0.95))
        for _ in range(5):
            mac.apps += (goal - mac.apps) // 3
            await asyncio.sleep(self.random.uniform(0.2, 5))

    async def apps_recede(self) -> None:
        self.daemon.mac.apps = int(self.usual_apps * self.random.uniform(0.5, 1.5))

    async def apps_spike(self) -> None:
        self.daemon.kernel.spikes = [int(self.daemon.mac.total * self.random.uniform(0.2, 0.9))]

    async def counters_fail(self) -> None:
        kernel = self.daemon.kernel
        kernel.counters_fail, kernel.psutil_fails = True, self.random.random() < 0.5
        await asyncio.sleep(self.random.uniform(1, 60))
        kernel.counters_fail = kernel.psutil_fails = False

    async def counters_freeze(self) -> None:
        self.daemon.kernel.frozen = True
        await asyncio.sleep(self.random.uniform(1, 200))
        self.daemon.kernel.frozen = False

    async def footprint_fails(self) -> None:
        self.daemon.kernel.footprint_fails = True
        await asyncio.sleep(self.random.uniform(1, 20))
        self.daemon.kernel.footprint_fails = False

    async def pool_swells(self) -> None:
        mac = self.daemon.mac
        mac.pool += min(80 * GiB, int(mac.total * self.random.uniform(0.1, 0.6)))

    async def machine_sleeps(self) -> None:
        self.daemon.sleep_machine(self.random.choice((30.0, 600.0, 36_000.0)))

    async def system_is_critical(self) -> None:
        self.daemon.mac.forced_pressure = CRITICAL
        await asyncio.sleep(self.random.uniform(1, 40))
        self.daemon.mac.forced_pressure = None

    async def requests_burst(self) -> None:
        for _ in range(self.random.randrange(5, 30)):
            self.send()

    async def clients_leave(self) -> None:
        for task in self.random.sample(list(self.clients), len(self.clients) // 2):
            task.cancel()

    async def pins_change(self) -> None:
        model = self.random.choice(("small", "other", "middle"))
        await self.daemon.pool.change_settings(model, {"pinned": self.random.random() < 0.5})

    async def owner_loads_and_unloads(self) -> None:
        model = self.random.choice(tuple(self.daemon.shapes))
        if self.random.random() < 0.5:
            self.follow(asyncio.create_task(self.daemon.pool.unload(model)))
        else:
            self.follow(asyncio.create_task(self.owner_load(model)))

    async def owner_load(self, model: str) -> None:
        with contextlib.suppress(OmlxdError):
            await self.daemon.pool.load(model)

    async def policy_changes(self) -> None:
        draw = self.random
        tier = draw.choice(("safe", "balanced", "aggressive", "custom"))
        size = self.daemon.mac.total / GiB * draw.uniform(0.2, 1.2)
        body = {"tier": tier, "custom_ceiling_gb": size if tier == "custom" else None}
        self.daemon.settings.change({**body, "enabled": draw.random() < 0.9})
        self.daemon.enforcer.wake()

    async def wakes_burst(self) -> None:
        for _ in range(20):
            self.daemon.enforcer.wake(active=True)
            await asyncio.sleep(0.05)

    async def device_is_slow(self) -> None:
        self.daemon.backend.slowness = self.random.choice((1.0, 8.0, 40.0))
        await asyncio.sleep(self.random.uniform(1, 60))
        self.daemon.backend.slowness = 1.0

    async def quiet(self) -> None:
        await asyncio.sleep(self.random.uniform(30, 900))

    async def end(self) -> None:
        """Everything is as at the start, and every request has had time to end."""
        daemon, kernel = self.daemon, self.daemon.kernel
        daemon.mac.apps = self.usual_apps
        daemon.mac.forced_pressure = None
        daemon.backend.slowness = 1.0
        kernel.counters_fail = kernel.psutil_fails = kernel.footprint_fails = kernel.frozen = False
        kernel.spikes = []
        daemon.settings.change({"tier": None, "custom_ceiling_gb": None, "enabled": None})
        for name in ("small", "other", "middle"):
            await daemon.pool.change_settings(name, {"pinned": False})
        daemon.enforcer.wake()
        if self.clients:
            _, late = await asyncio.wait(set(self.clients), timeout=3600)
            assert not late, "requests never end"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", SIZES)
def test_the_invariants_hold_through_random_trouble(size: int, seed: int) -> None:
    get_through_trouble(size, seed)


@pytest.mark.deep
@pytest.mark.parametrize("size", SIZES)
def test_the_invariants_hold_through_trouble_with_fresh_seeds(size: int) -> None:
    for _ in range(DEEP_SEEDS):
        seed = random.randrange(10**9)
        try:
            get_through_trouble(size, seed)
        except AssertionError as error:
            error.add_note(f"size {size}, seed {seed}")
            raise


def get_through_trouble(size: int, seed: int) -> None:
    async def through_trouble() -> None:
        daemon = a_mac(size, pinned=["other"] if seed % 2 else [])
        watch = Watch(daemon)
        await daemon.start()
        script = Script(daemon, 1000 * size + seed)
        while watch.ticks < LEAST_TICKS // len(SEEDS):
            await script.scene()
            assert watch.broken == []
        await script.end()
        await daemon.ticks(8)
        assert watch.broken == []
        await as_good_as_new(daemon, watch)
        await daemon.stop()
        assert daemon.deaths == []
        assert set(daemon.tally.errors) <= EXPECTED_ERRORS, daemon.tally.texts
        assert daemon.tally.finished > 0

    with Troubles() as troubles:
        run_virtually(through_trouble())
    assert troubles.records == []


async def as_good_as_new(daemon: SimulatedDaemon, watch: Watch) -> None:
    """It has settled, owes nobody anything, and serves."""
    at = daemon.clock()
    await daemon.ticks(10)
    assert watch.since(at) == []
    assert daemon.decision.memory.level is not Level.HARD
    assert daemon.tally.open == 0
    assert daemon.engine.requests.views() == ()
    assert daemon.promised == 0
    assert [s.id for s in daemon.pool.statuses() if s.leases or s.waiting] == []
    for model in ("small", "middle", "big"):
        assert await daemon.ask(model) == "finished"
