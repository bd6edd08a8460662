import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from omlxd.backend.protocol import BackendInfo
from omlxd.enforcer.options import WiredLimit
from omlxd.enforcer.readers import (
    AllocatorSampler,
    HostReader,
    wired_limit,
    wired_limit_at_start,
    with_footprints,
)
from omlxd.errors import ShuttingDown
from omlxd.host.clock import SleepWatch
from omlxd.host.protocol import RuntimeMemory
from omlxd.policy.readings import AllocatorSample, MemoryReading
from omlxd.policy.tiers import Tier
from omlxd.units import GiB

CUDA = BackendInfo("mlx", (), "a device", None, None, 80 * GiB, own_memory=True)
METAL = BackendInfo("mlx", (), "a device", 48 * GiB, None, 64 * GiB)


class Host:
    name = "fake"

    def __init__(self) -> None:
        self.degraded: tuple[str, ...] = ()

    def read(self, now: float) -> MemoryReading:
        return MemoryReading(now, 64 * GiB, degraded=self.degraded)

    def footprint(self) -> int | None:
        return GiB

    def footprints(self) -> tuple[int | None, int | None]:
        return GiB, None

    def total_memory(self) -> int:
        return 64 * GiB

    def wired_limit(self) -> int | None:
        return None

    def release_free_memory(self) -> int | None:
        return 3


class Clocks:
    def __init__(self) -> None:
        self.continuous = 100.0
        self.awake = 50.0

    def sleep(self, seconds: float) -> None:
        self.continuous += seconds

    def watch(self) -> SleepWatch:
        return SleepWatch(lambda: self.continuous, lambda: self.awake)


def test_a_source_that_fails_is_said_once_and_so_is_its_return() -> None:
    host, clocks = Host(), Clocks()
    reader = HostReader(host, clocks.watch(), lambda: None)
    with capture_logs() as logs:
        reader.read(1.0)
        host.degraded = ("swap is unknown",)
        reader.read(2.0)
        reader.read(3.0)
        host.degraded = ()
        reader.read(4.0)
    assert [log["event"] for log in logs] == ["reading_degraded", "reading_degraded"]
    assert [log["lines"] for log in logs] == [["swap is unknown"], []]
    assert [log["log_level"] for log in logs] == ["warning", "info"]


def test_waking_up_is_said_and_asks_for_fresh_readings() -> None:
    host, clocks = Host(), Clocks()
    woken = []
    reader = HostReader(host, clocks.watch(), lambda: woken.append(True))
    reader.read(1.0)
    assert not woken
    clocks.sleep(3600)
    with capture_logs() as logs:
        reader.read(2.0)
        reader.read(3.0)
    assert woken == [True]
    assert [(log["event"], log["slept_seconds"]) for log in logs] == [("woke_up", 3600.0)]


class Engine:
    def __init__(self) -> None:
        self.info: BackendInfo | None = METAL
        self.latest_sample: AllocatorSample | None = AllocatorSample(90.0, 1, 2, 3)
        self.asked = 0
        self.answer: AllocatorSample | Exception | None = AllocatorSample(100.0, 4, 5, 6)

    async def sample(self) -> AllocatorSample:
        self.asked += 1
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer


def sampler_of(engine: Any, *, working: bool = False) -> AllocatorSampler:
    return AllocatorSampler(engine, lambda: 100.0, lambda: working)


async def test_an_idle_device_thread_is_asked_when_its_sample_is_old() -> None:
    engine = Engine()
    assert await sampler_of(engine).sample() == engine.answer
    engine.latest_sample = AllocatorSample(99.95, 7, 8, 9)
    assert await sampler_of(engine).sample() == engine.latest_sample
    assert engine.asked == 1


async def test_a_working_one_is_never_waited_for() -> None:
    engine = Engine()
    assert await sampler_of(engine, working=True).sample() == engine.latest_sample
    assert engine.asked == 0


async def test_before_the_runtime_is_up_there_is_no_sample() -> None:
    engine = Engine()
    engine.info = engine.latest_sample = None
    sampler = sampler_of(engine)
    assert await sampler.sample() is None
    assert not sampler.up
    assert engine.asked == 0


@pytest.mark.parametrize("answer", [None, ShuttingDown("The server is shutting down.")])
async def test_no_answer_in_time_leaves_the_last_sample(answer: Exception | None) -> None:
    engine = Engine()
    engine.answer = answer
    assert await sampler_of(engine).sample() == engine.latest_sample


def test_the_last_sample_of_an_idle_runtime_is_of_now_and_of_a_working_one_of_its_step() -> None:
    engine = Engine()
    assert sampler_of(engine).latest == AllocatorSample(100.0, 1, 2, 3)
    assert sampler_of(engine, working=True).latest == AllocatorSample(90.0, 1, 2, 3)
    engine.latest_sample = None
    assert sampler_of(engine).latest is None


def memory_of(engine: Engine) -> RuntimeMemory:
    return sampler_of(engine).memory()


def test_the_host_learns_the_working_set_once_it_is_known() -> None:
    engine = Engine()
    memory = memory_of(engine)
    assert memory.working_set() == 48 * GiB
    assert memory.device() is None
    engine.info = None
    assert memory.working_set() is None


def test_a_device_with_its_own_memory_is_the_guarded_domain() -> None:
    """Own footprint, where the guarded domain is the device: MLX active + pool."""
    engine = Engine()
    engine.info = CUDA
    engine.latest_sample = AllocatorSample(90.0, 10, 5, 20, device_free=70)
    device = memory_of(engine).device()
    assert device is not None
    assert (device.total, device.free, device.used, device.taken_at) == (80 * GiB, 70, 15, 90.0)
    engine.latest_sample = None
    assert memory_of(engine).device() is None


def test_a_reading_can_have_the_footprint_of_this_moment() -> None:
    old = MemoryReading(1.0, 64 * GiB, footprint=2 * GiB, graphics_footprint=GiB)
    new = with_footprints(old, GiB, None, 9.0)
    assert (new.footprint, new.graphics_footprint) == (GiB, None)
    assert new.sources["footprint"].taken_at == 9.0
    assert with_footprints(old, None, None, 9.0) is old


STATIC = 56 * GiB


@pytest.mark.parametrize(
    ("wish", "kernel", "wired"),
    [
        (WiredLimit.OFF, 60 * GiB, None),
        (WiredLimit.AUTO, 0, None),
        (WiredLimit.AUTO, None, None),
        (WiredLimit.AUTO, 60 * GiB, STATIC),
        (WiredLimit.AUTO, 50 * GiB, 50 * GiB),
        (40 * GiB, 0, 40 * GiB),
        (60 * GiB, 0, STATIC),
        (40 * GiB, None, None),
    ],
)
def test_wiring_is_off_unless_asked_for_and_auto_follows_a_raised_limit_only(
    wish: WiredLimit | int, kernel: int | None, wired: int | None
) -> None:
    """[R] "auto" only when the kernel limit was raised by the user, with min(static, kernel
    limit)."""
    assert wired_limit(wish, kernel, STATIC) == wired


def test_nothing_is_wired_unless_asked_for_and_the_machine_is_known() -> None:
    machine: Any = SimpleNamespace(wired_limit=lambda: 50 * GiB, total_memory=lambda: 64 * GiB)

    def unreadable() -> Any:
        raise OSError("no sysctl")

    assert wired_limit_at_start(WiredLimit.OFF, Tier.BALANCED, unreadable) is None
    assert wired_limit_at_start(WiredLimit.AUTO, Tier.BALANCED, lambda: machine) == 50 * GiB
    with capture_logs() as logs:
        assert wired_limit_at_start(WiredLimit.AUTO, Tier.BALANCED, unreadable) is None
    assert [log["event"] for log in logs] == ["wired_limit_unknown"]
