"""The guard on the daemon's real parts."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from omlxd.enforcer.enforcer import Enforcer
from omlxd.enforcer.ports import GuardParts
from omlxd.enforcer.readers import AllocatorSampler, HostReader
from omlxd.enforcer.settings import GuardSettings
from omlxd.errors import OmlxdError
from omlxd.host.clock import SleepWatch
from omlxd.policy.readings import AllocatorSample, MemoryReading, ModelView
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.units import GiB

CUSTOM = GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=10 * GiB)


class FakeMachine:
    """Host, engine, registry and pool in one object, with only the methods that the guard calls."""

    name = "fake"
    info = SimpleNamespace(recommended_working_set=None, own_memory=False)

    def __init__(self, policy: GuardPolicy = CUSTOM) -> None:
        self.now = 100.0
        self.used = GiB
        self.graphics: int | None = None
        self.active: int | None = None
        """None: the same as ``used``."""
        self.pool = 0
        self.total = 64 * GiB
        self.kernel_limit: int | None = 0
        self.open = 0
        self.models: tuple[ModelView, ...] = ()
        self.idle_checks = 0
        self.reclaimed_bytes = 0
        self.failed: list[OmlxdError] = []
        settings = GuardSettings(policy, {}, {}, lambda values: None)
        parts: Any = GuardParts(
            host=self,
            reader=HostReader(self, SleepWatch(lambda: 0.0, lambda: 0.0), lambda: None),
            sampler=AllocatorSampler(self, lambda: self.now, lambda: False),  # type: ignore[arg-type]
            engine=self,  # type: ignore[arg-type]
            pool=self,  # type: ignore[arg-type]
            open_requests=lambda: self.open,
            queue_deadline=300.0,
            clock=lambda: self.now,
        )
        self.guard = Enforcer(parts.ports(), settings)

    # The host

    def read(self, now: float) -> MemoryReading:
        free = 40 * GiB
        return MemoryReading(
            now,
            self.total,
            footprint=self.used,
            graphics_footprint=self.graphics,
            free=free,
            inactive=0,
            active=0,
            external=0,
        )

    def footprint(self) -> int | None:
        return self.used

    def footprints(self) -> tuple[int | None, int | None]:
        return self.used, self.graphics

    def total_memory(self) -> int:
        return self.total

    def wired_limit(self) -> int | None:
        return self.kernel_limit

    def release_free_memory(self) -> int | None:
        return None

    # The engine

    @property
    def latest_sample(self) -> AllocatorSample:
        active = self.used if self.active is None else self.active
        return AllocatorSample(self.now, active, self.pool, self.used)

    async def sample(self) -> AllocatorSample:
        return self.latest_sample

    def set_limits(self, limits: object) -> None: ...

    def abort(self, model_id: str | None, error: OmlxdError) -> int:
        return 0

    def reclaim(self, *, when_idle: bool) -> None: ...

    @property
    def requests(self) -> "FakeMachine":
        """Its registry of requests."""
        return self

    def fail_queued(self, after: float, make_error: Callable[[Any], OmlxdError]) -> int:
        assert after == 300.0
        self.failed.append(make_error(SimpleNamespace(age=301.0)))
        return 1

    # The pool

    def views(self) -> tuple[ModelView, ...]:
        return self.models

    async def apply(self, action: object, load_error: object) -> None: ...

    def check_idle(self) -> None:
        self.idle_checks += 1

    async def ticked(self, times: int = 1) -> None:
        wanted = self.idle_checks + times
        async with asyncio.timeout(5):
            while self.idle_checks < wanted:
                await asyncio.sleep(0)


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


async def running(machine: FakeMachine) -> asyncio.Task[None]:
    task = asyncio.create_task(machine.guard.run())
    await machine.ticked()
    return task


async def test_arrivals_wake_it_once_in_half_a_poll(machine: FakeMachine) -> None:
    task = await running(machine)
    before = machine.idle_checks
    for _ in range(100):
        machine.guard.arrived()
    await machine.ticked()
    await asyncio.sleep(0)
    assert machine.idle_checks == before + 1
    machine.now += 0.6
    machine.guard.arrived()
    await machine.ticked()
    task.cancel()


async def test_an_open_request_and_a_busy_model_set_the_pace(machine: FakeMachine) -> None:
    assert machine.guard.interval == 30.0
    machine.open = 1
    assert machine.guard.interval == 1.0
    machine.open = 0
    machine.models = (ModelView("a", GiB, 0, False, 0, False, 1.0),)
    assert machine.guard.interval == 10.0
    machine.models = (ModelView("a", GiB, 0, False, 0, False, 1.0, loading=True),)
    assert machine.guard.interval == 1.0


async def test_admission_of_loads_sees_usage_as_it_is_now(machine: FakeMachine) -> None:
    assert machine.guard.memory() is None
    task = await running(machine)
    machine.now += 20.0
    machine.used = 3 * GiB
    memory = machine.guard.memory()
    assert memory is not None
    assert memory.usage.bytes == 3 * GiB
    assert memory.usage.fresh
    assert memory.ceilings.ceiling == 10 * GiB
    assert (memory.paused, memory.enforce) == (False, True)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert machine.guard.memory() is None


async def test_a_load_is_not_held_up_by_what_the_driver_still_holds(machine: FakeMachine) -> None:
    """Usage = max(MLX active, own footprint - graphics memory that MLX has already freed but the
    driver still holds)."""
    machine.used, machine.graphics = 9 * GiB, 8 * GiB
    machine.active, machine.pool = 2 * GiB, 6 * GiB
    task = await running(machine)
    machine.now += 0.5
    machine.pool = 0
    memory = machine.guard.memory()
    assert memory is not None
    assert memory.usage.bytes == 3 * GiB
    # The driver frees it: footprint and graphics fall together; nothing is subtracted twice.
    machine.used, machine.graphics = 3 * GiB, 2 * GiB
    memory = machine.guard.memory()
    assert memory is not None
    assert memory.usage.bytes == 3 * GiB
    task.cancel()


async def test_paused_requests_end_at_their_deadline_and_say_why(machine: FakeMachine) -> None:
    """Waits in the queue; at its deadline 503 ``memory_pressure``."""
    task = await running(machine)
    assert machine.failed == []
    machine.used = int(9.2 * GiB)
    machine.now += 1.0
    machine.guard.wake()
    await machine.ticked()
    assert [error.code for error in machine.failed] == ["memory_pressure"]
    assert machine.failed[0].details["mark"] == "soft"
    assert machine.failed[0].retry_after is not None
    task.cancel()


async def test_the_start_warns_of_a_clamped_ceiling_and_a_wired_limit() -> None:
    """T05."""
    ceiling = GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=100 * GiB)
    machine = FakeMachine(ceiling)
    machine.kernel_limit = 63 * GiB
    task = await running(machine)
    with capture_logs() as logs:
        await machine.guard.begin()
    warnings = [log for log in logs if log["log_level"] == "warning"]
    assert [log["event"] for log in warnings] == ["guard_setting_clamped", "wired_limit_warning"]
    assert warnings[0]["cause"] == "ram_reserve"
    task.cancel()
