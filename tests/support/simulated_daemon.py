"""The real core of the daemon on a simulated Mac and in virtual time.

Real: host layer, policy, guard, pool, engine, device worker and its schedulers. The device thread
is a task that takes its next turn when the time of its last steps has passed.
"""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from queue import Empty
from typing import Any

import structlog

from omlxd.backend.sequence import SequenceSpec
from omlxd.enforcer.enforcer import Enforcer
from omlxd.enforcer.ports import GuardParts, GuardPorts
from omlxd.enforcer.readers import AllocatorSampler, HostReader
from omlxd.enforcer.settings import GuardSettings
from omlxd.engine.handle import Engine, _DeviceThread
from omlxd.engine.messages import BackendReady, Event
from omlxd.engine.options import EngineOptions
from omlxd.engine.state import EngineState, Reply
from omlxd.engine.worker import Worker
from omlxd.errors import OmlxdError
from omlxd.host.clock import SleepWatch
from omlxd.host.darwin import DarwinHost
from omlxd.library.catalog import CatalogModel, ModelKind, RootScan, RootState, RootStatus, merge
from omlxd.library.library import Library
from omlxd.model_settings.options import ModelSettings
from omlxd.model_settings.settings import ModelSettingsStore
from omlxd.policy.actions import Action, ActionOutcome
from omlxd.policy.decision import Decision
from omlxd.policy.memory_state import MemoryState
from omlxd.policy.tiers import GuardPolicy
from omlxd.pool.options import PoolOptions
from omlxd.pool.pool import EnginePool
from omlxd.pool.ports import PoolPorts
from tests.support.at_once import AtOnce
from tests.support.simulated_mac import Mac, ModelShape, SimulatedBackend, SimulatedKernel


class Inbox:
    """The device thread's queue, for a device that is a task and no thread."""

    coming = 0

    def __init__(self) -> None:
        self._commands: deque[Any] = deque()
        self.news = asyncio.Event()

    def put(self, command: Any) -> None:
        self._commands.append(command)
        self.news.set()

    def get(self, *, block: bool = True, timeout: float | None = None) -> Any:
        if not self._commands:
            assert timeout is not None or not block, "the device would wait without an end"
            raise Empty
        return self._commands.popleft()

    def __len__(self) -> int:
        return len(self._commands)


class StepwiseEngine(Engine):
    """The real engine; its device takes turns on the loop, each as long as its steps say."""

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._inbox: Any = Inbox()
        state = EngineState(self._clock, self.requests, Reply())
        self._thread = thread = _DeviceThread(state, loop, self._thread_left)
        self.device = asyncio.create_task(self._serve(state, thread), name="device")

    async def _serve(self, state: EngineState, thread: _DeviceThread) -> None:
        backend: Any = self._backend
        posted: list[Event] = []
        worker = Worker(
            backend,
            self._options,
            # For the device, the time that a turn has used so far has passed.
            lambda: self._clock() + backend.spent,
            self._inbox,
            posted.extend,
            sample_clock=lambda: self._sample_clock() + backend.spent,
        )
        worker._outbox.append(BackendReady(backend.start()))
        worker._sample()
        worker._flush()
        alive = True
        while alive:
            await asyncio.sleep(backend.spent)
            backend.spent = 0.0
            state.apply(posted)
            posted.clear()
            while worker.idle and not len(self._inbox):
                self._inbox.news.clear()
                await self._inbox.news.wait()
            alive = worker.iterate()
        worker._leave()
        state.apply(posted)
        thread._leave(None)


@dataclass
class Tally:
    """Counts the outcomes of the requests."""

    finished: int = 0
    left: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    texts: dict[str, str] = field(default_factory=dict)
    """The last message of each code."""
    open: int = 0


@dataclass
class Watchers:
    """The callbacks for ticks and actions, and every action so far with its outcome."""

    after_tick: list[Callable[[], None]] = field(default_factory=list)
    before_action: list[Callable[[Action, Decision], None]] = field(default_factory=list)
    applied: list[tuple[Action, Decision, ActionOutcome]] = field(default_factory=list)


def watched(ports: GuardPorts, watchers: Watchers) -> GuardPorts:
    """The daemon's ports, with ``watchers`` called at every tick and action."""

    async def apply(action: Action, decision: Decision) -> ActionOutcome:
        for tell in watchers.before_action:
            tell(action, decision)
        outcome = await ports.apply(action, decision)
        watchers.applied.append((action, decision, outcome))
        return outcome

    def after_tick(memory: MemoryState | None) -> None:
        ports.after_tick(memory)
        for tell in list(watchers.after_tick):
            tell()

    return replace(ports, apply=apply, after_tick=after_tick)


class SimulatedDaemon:
    """Use ``started()`` in a virtual loop. Tests change the machine by ``mac`` and ``kernel``."""

    def __init__(
        self,
        total: int,
        shapes: dict[str, ModelShape],
        *,
        policy: GuardPolicy | None = None,
        pinned: Iterable[str] = (),
        pool_options: PoolOptions | None = None,
        engine_options: EngineOptions | None = None,
        **mac: Any,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.slept = 0.0
        self.mac = Mac(total, self.clock, **mac)
        self.kernel = SimulatedKernel(self.mac)
        self.shapes = shapes
        paths = {f"/models/{name}": shape for name, shape in shapes.items()}
        self.backend = SimulatedBackend(self.mac, paths)
        self.engine = StepwiseEngine(
            self.backend,
            engine_options or EngineOptions(),
            self._loop.time,
            on_death=self._died,
            sample_clock=self.clock,
        )
        self.tally = Tally()
        self.watchers = Watchers()
        sampler = AllocatorSampler(self.engine, self.clock, lambda: self.engine.requests.held() > 0)
        self.host = DarwinHost(
            sampler.memory(),
            open_kernel=lambda: self.kernel,  # type: ignore[arg-type, return-value]
            available=self.kernel.available,
        )
        sleep = SleepWatch(self.clock, self._loop.time)
        reader = HostReader(self.host, sleep, lambda: self.enforcer.wake(active=True))
        options = _with_pins(pool_options or PoolOptions(scan_every=None), pinned)
        self.library = Library(
            (), ModelSettingsStore(options.settings, options.default), options.scan_limit
        )
        self.pool = EnginePool(
            options,
            self.library,
            PoolPorts(
                engine=self.engine,
                load_tokenizer=lambda path: object(),  # type: ignore[arg-type, return-value]
                clock=self._loop.time,
                own_thread=AtOnce,
                wake=lambda: self.enforcer.wake(),
                usage=self.host.footprint,
                release_memory=reader.release_free_memory,
                memory=lambda: self.enforcer.memory(),
                on_eviction=lambda eviction: self.enforcer.evicted(eviction),
            ),
        )
        self.settings = GuardSettings(policy or GuardPolicy(), {}, {}, lambda values: None)
        parts = GuardParts(
            host=self.host,
            reader=reader,
            sampler=sampler,
            engine=self.engine,
            pool=self.pool,
            open_requests=lambda: self.tally.open,
            queue_deadline=options.queue_deadline,
            clock=self.clock,
        )
        self.enforcer = Enforcer(watched(parts.ports(), self.watchers), self.settings)
        self.deaths: list[BaseException] = []
        self._numbers = itertools.count(1)
        self._running: asyncio.Task[None] | None = None

    def clock(self) -> float:
        """This clock goes on while the machine sleeps; the loop's own time does not."""
        return self._loop.time() + self.slept

    def sleep_machine(self, seconds: float) -> None:
        """Close the lid for a while."""
        self.slept += seconds

    async def start(self) -> "SimulatedDaemon":
        self.engine.start()
        await self.engine.ready()
        await self.pool.start()
        scan = RootScan(RootStatus("/models", RootState.OK), tuple(map(self._model, self.shapes)))
        self.library.adopt(merge([scan]))
        self._running = asyncio.create_task(self.enforcer.run(), name="guard")
        await self.enforcer.begin()
        return self

    async def stop(self) -> None:
        """In the daemon's order."""
        assert self._running is not None
        self._running.cancel()
        await asyncio.wait([self._running])
        await self.pool.stop()
        assert await self.engine.stop(60)

    def _model(self, name: str) -> CatalogModel:
        return CatalogModel(
            id=name,
            path=f"/models/{name}",
            kind=ModelKind.LANGUAGE,
            model_type="llama",
            architecture="LlamaForCausalLM",
            weights_bytes=self.shapes[name].weights,
            vision_bytes=0,
            context_length=100_000,
            quantization=None,
            fingerprint=name,
            created=0,
            config={},
            generation={},
        )

    # Clients

    async def ask(
        self,
        model: str,
        *,
        prompt: int = 100,
        tokens: int = 20,
        hold: float = 0.0,
        deadline: float | None = None,
    ) -> str:
        """One request; ``finished`` or the code of its error. ``hold``: seconds to keep the lease
        before and after."""
        self.tally.open += 1
        self.enforcer.arrived()
        number = next(self._numbers)
        try:
            until = None if deadline is None else self._loop.time() + deadline
            async with self.pool.acquire(model, request_id=f"r{number}", deadline=until) as lease:
                await asyncio.sleep(hold)
                spec = SequenceSpec(f"s{number}", (1,) * prompt, tokens)
                async for _ in lease.submit(spec):
                    pass
                await asyncio.sleep(hold)
        except OmlxdError as error:
            self.tally.errors[error.code] += 1
            self.tally.texts[error.code] = error.message
            return error.code
        except asyncio.CancelledError:
            self.tally.left += 1
            raise
        else:
            self.tally.finished += 1
            return "finished"
        finally:
            self.tally.open -= 1

    # Looking

    def state(self, model: str) -> str:
        return next(s.state for s in self.pool.statuses() if s.id == model)

    def in_memory(self) -> list[str]:
        return [view.id for view in self.pool.views()]

    @property
    def decision(self) -> Decision:
        entry = self.enforcer.latest
        assert entry is not None, "no tick yet"
        return entry.decision

    @property
    def promised(self) -> int:
        return self.pool._residency.loader.promised()

    async def ticks(self, count: int) -> None:
        """Let that many ticks pass."""
        for _ in range(count):
            over = asyncio.Event()
            self.watchers.after_tick.append(over.set)
            await over.wait()
            self.watchers.after_tick.remove(over.set)

    def _died(self, error: BaseException) -> None:
        self.deaths.append(error)


def _with_pins(options: PoolOptions, pinned: Iterable[str]) -> PoolOptions:
    wishes = {name: ModelSettings(pinned=True) for name in pinned}
    return replace(options, settings={**(options.settings or {}), **wishes})


class Troubles:
    """Collects the errors in the log. In these tests each of them is a bug of ours."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def __enter__(self) -> "Troubles":
        structlog.configure(
            processors=[structlog.processors.format_exc_info, self._keep],
            wrapper_class=structlog.make_filtering_bound_logger(40),
        )
        return self

    def __exit__(self, *exc: object) -> None:
        structlog.reset_defaults()

    def _keep(self, logger: Any, method: str, record: Any) -> Any:
        self.records.append(dict(record))
        raise structlog.DropEvent
