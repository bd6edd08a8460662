"""A fake engine, timers and a clock that a test controls, without threads and without waiting."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from omlxd.engine.handle import Engine
from omlxd.engine.messages import ModelInfo
from omlxd.errors import ModelLoadCancelled, OmlxdError
from omlxd.library.catalog import (
    CatalogModel,
    ModelKind,
    RootScan,
    RootState,
    RootStatus,
    merge,
)
from omlxd.library.library import Library
from omlxd.model_settings.settings import ModelSettingsStore
from omlxd.policy.ceiling import Ceilings, Limits
from omlxd.policy.memory_state import MemoryState
from omlxd.policy.pressure import Pause
from omlxd.policy.readings import AllocatorSample, MemoryReading
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.policy.usage import Usage
from omlxd.pool.options import PoolOptions
from omlxd.pool.pool import EnginePool
from omlxd.pool.ports import PoolPorts
from tests.support.at_once import AtOnce
from tests.support.fake_generation import FakeGeneration

MiB = 1024**2


class FakeTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeTime:
    """A clock that moves only when a test moves it, and its timers."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._numbers = itertools.count()

    def clock(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(callback)
        heapq.heappush(self._timers, (self.now + delay, next(self._numbers), timer))
        return timer

    async def pass_by(self, seconds: float) -> None:
        """Timers fire in order. The tasks that one timer starts run before the next timer."""
        end = self.now + seconds
        await settle()
        rung = 0
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            rung += 1
            assert rung < 2000, "a timer that sets itself again and again"
            self.now = max(self.now, due)
            if timer.callback is not None:
                timer.callback()
                await settle()
        self.now = end
        await settle()


async def settle() -> None:
    """Let every task run as far as it can."""
    for _ in range(30):
        await asyncio.sleep(0)


@dataclass
class FakeTicket:
    model_id: str
    total: int
    loaded_bytes: int | None = None
    total_bytes: int | None = None
    cancelled: bool = False
    answer: asyncio.Future[ModelInfo] = field(default_factory=asyncio.Future)
    sized: asyncio.Future[int] = field(default_factory=asyncio.Future)

    async def size(self) -> int:
        return await asyncio.shield(self.sized)

    async def result(self) -> ModelInfo:
        return await asyncio.shield(self.answer)

    def cancel(self) -> None:
        self.cancelled = True

    def progress(self, done: int) -> None:
        self.loaded_bytes, self.total_bytes = done, self.total
        if not self.sized.done():
            self.sized.set_result(self.total)

    def finish(self) -> None:
        self.answer.set_result(ModelInfo(self.total, 100, ("KVCache",)))

    def fail(self, error: Exception) -> None:
        self.answer.set_exception(error)

    def stop(self) -> None:
        """Run the piece in which the load sees its cancellation."""
        self.fail(ModelLoadCancelled("cancelled"))


@dataclass
class FakeActivity:
    held: int = 0
    cache_bytes: int = 0
    last_step_at: float | None = None


class FakeEngine:
    """``auto``: loads and unloads end by themselves at the next turn of the loop."""

    def __init__(self, *, auto: bool = True) -> None:
        self.auto = auto
        self.sizes: dict[str, int] = {}
        self.tickets: list[FakeTicket] = []
        self.unloads: list[tuple[str, asyncio.Future[int]]] = []
        self.aborts: list[tuple[str | None, OmlxdError]] = []
        self.resident: set[str] = set()
        self.activity: dict[str, FakeActivity] = {}
        self.most_resident = 0
        self.reclaims: list[bool] = []
        self.pool = 0
        self.samples = 0
        self.on_unload: Callable[[int], None] = lambda freed: None

    def load(self, model_id: str, path: str) -> FakeTicket:
        assert model_id not in self.resident, "loaded twice"
        ticket = FakeTicket(model_id, self.sizes.get(model_id, 10 * MiB))
        self.tickets.append(ticket)
        ticket.answer.add_done_callback(lambda done: self._loaded(model_id, done))
        if self.auto:
            ticket.finish()
        return ticket

    def _loaded(self, model_id: str, done: asyncio.Future[ModelInfo]) -> None:
        if done.exception() is None:
            self.resident.add(model_id)
            self.most_resident = max(self.most_resident, len(self.resident))

    async def unload(self, model_id: str) -> int:
        assert model_id in self.resident, "unloaded without being loaded"
        answer: asyncio.Future[int] = asyncio.Future()
        self.unloads.append((model_id, answer))
        if self.auto:
            answer.set_result(self.sizes.get(model_id, 10 * MiB))
        freed = await answer
        self.resident.discard(model_id)
        self.on_unload(freed)
        return freed

    def submit(self, model_id: str, sequence: Any) -> FakeGeneration:
        assert model_id in self.resident, "submitted to a model that is not loaded"
        return FakeGeneration(sequence)

    def abort(self, model_id: str | None, error: OmlxdError) -> int:
        self.aborts.append((model_id, error))
        return 1

    def reclaim(self, *, when_idle: bool) -> None:
        self.reclaims.append(when_idle)

    @property
    def active(self) -> int:
        loading = sum(t.loaded_bytes or 0 for t in self.tickets if not t.answer.done())
        return sum(self.sizes[name] for name in self.resident) + loading

    @property
    def latest_sample(self) -> AllocatorSample:
        return AllocatorSample(0.0, self.active, self.pool, self.active)

    async def sample(self) -> AllocatorSample:
        self.samples += 1
        return self.latest_sample

    def view(self, model_id: str) -> FakeActivity:
        return self.activity.get(model_id, FakeActivity())

    def loads_of(self, model_id: str) -> int:
        return sum(ticket.model_id == model_id for ticket in self.tickets)


def a_model(model_id: str, *, size: int = 10 * MiB, fingerprint: str = "1") -> CatalogModel:
    return CatalogModel(
        id=model_id,
        path=f"/models/{model_id}",
        kind=ModelKind.LANGUAGE,
        model_type="llama",
        architecture="LlamaForCausalLM",
        weights_bytes=size,
        vision_bytes=0,
        context_length=4096,
        quantization=None,
        element_bytes=4,
        fingerprint=f"{model_id}-{fingerprint}",
        created=0,
        config={},
        generation={},
    )


def a_scan(*models: CatalogModel, broken: Any = ()) -> RootScan:
    return RootScan(RootStatus("/models", RootState.OK), models, tuple(broken))


def ceilings(
    total: int, *, soft: float = 0.9, hard: float = 0.95, enabled: bool = True
) -> Ceilings:
    """A machine whose ceiling is ``total`` bytes."""
    return Ceilings(
        enabled=enabled,
        tier=Tier.BALANCED,
        total=total,
        reserve=0,
        static=total,
        dynamic=None,
        metal=None,
        device_cap=None,
        soft_fraction=soft,
        hard_fraction=hard,
    )


class FakeMachine:
    """Memory with the models that the fake engine has loaded, and ``others`` bytes."""

    def __init__(self, total: int, **more: Any) -> None:
        self.ceilings = ceilings(total, **more)
        self.engine: FakeEngine | None = None
        self.others = 0
        self.residue = 0
        self.paused = False
        self.enforce = True
        self.age = 0.0
        self.most = 0
        self.reading: MemoryReading | None = None

    def keep(self, freed: int) -> None:
        """Dropped bytes still show in the process's footprint."""
        self.residue += freed

    def used(self) -> int:
        engine = self.engine
        assert engine is not None
        return engine.active + self.others

    def usage(self) -> int:
        assert self.engine is not None
        return self.used() + self.residue + self.engine.pool

    def memory(self) -> MemoryState:
        assert self.engine is not None
        self.most = max(self.most, self.used())
        usage = Usage(
            bytes=self.usage(),
            active=self.used(),
            buffer_cache=self.engine.pool,
            footprint=self.usage(),
        )
        return MemoryState(
            at=0.0,
            policy=GuardPolicy(enforce=self.enforce),
            reading=self.reading or MemoryReading(0.0, self.ceilings.total),
            usage=usage,
            ceilings=self.ceilings,
            limits=Limits(),
            pause=Pause.LEVEL if self.paused else None,
            age=self.age,
        )


class House:
    """A pool with everything around it faked."""

    def __init__(
        self,
        *models: CatalogModel,
        options: PoolOptions | None = None,
        auto: bool = True,
        **more: Any,
    ) -> None:
        self.time = FakeTime()
        self.engine = FakeEngine(auto=auto)
        self.engine.sizes = {model.id: model.weights_bytes for model in models}
        self.machine: FakeMachine | None = more.pop("machine", None)
        if self.machine is not None:
            self.machine.engine = self.engine
            more = {"usage": self.machine.usage, "memory": self.machine.memory, **more}
        self.woken = 0
        self.tokenizer_loads: list[str] = []
        self.tokenizer_fault: Exception | None = None
        ports = {
            key: more.pop(key)
            for key in (
                "usage",
                "release_memory",
                "memory",
                "state",
                "died",
                "on_eviction",
                "most_waiting",
                "own_thread",
            )
            if key in more
        }
        options = options or PoolOptions()
        self.library = Library(
            more.pop("roots", ()),
            ModelSettingsStore(options.settings, options.default),
            options.scan_limit,
            call_later=self.time.call_later,
            **more,
        )
        self.pool = EnginePool(
            options,
            self.library,
            PoolPorts(
                # It has the engine's methods. The pool's type is the one real engine.
                engine=cast(Engine, self.engine),
                load_tokenizer=self._tokenizer,
                clock=self.time.clock,
                call_later=self.time.call_later,
                wake=self._wake,
                **{"own_thread": AtOnce, **ports},
            ),
        )
        self.show(*models)

    def show(self, *models: CatalogModel, broken: Any = ()) -> None:
        """Set the models that a scan finds on disk."""
        self.library.adopt(merge([a_scan(*models, broken=broken)]))

    def state(self, model_id: str) -> str:
        return next(s.state for s in self.pool.statuses() if s.id == model_id)

    def status(self, model_id: str) -> Any:
        return next(s for s in self.pool.statuses() if s.id == model_id)

    def use(self, model_id: str, request_id: str = "r", **more: Any) -> "Use":
        return Use(self.pool, model_id, request_id, more)

    def _wake(self) -> None:
        self.woken += 1

    def _tokenizer(self, path: str) -> Any:
        self.tokenizer_loads.append(path)
        if self.tokenizer_fault is not None:
            raise self.tokenizer_fault
        return object()


class Use:
    """A client: takes a lease and keeps it until the test ends it."""

    def __init__(self, pool: EnginePool, model_id: str, request_id: str, more: Any) -> None:
        self.lease: Any = None
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._run(pool, model_id, request_id, more))
        # Retrieve the error. Otherwise a garbage collection writes its traceback, and Python 3.11
        # fails at this while it parses Python.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _run(self, pool: EnginePool, model_id: str, request_id: str, more: Any) -> None:
        async with pool.acquire(model_id, request_id=request_id, **more) as lease:
            self.lease = lease
            await self.leave.wait()

    async def done(self) -> None:
        self.leave.set()
        await self.task

    @property
    def error(self) -> Any:
        return self.task.exception() if self.task.done() else None
