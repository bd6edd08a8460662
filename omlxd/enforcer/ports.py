"""The inputs of the enforcer, and how they are made from the parts of the daemon."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from omlxd.enforcer.executor import ActionExecutor, waited
from omlxd.enforcer.readers import AllocatorSampler, HostReader
from omlxd.engine.handle import Engine
from omlxd.host.protocol import Host
from omlxd.policy.actions import Action, ActionOutcome
from omlxd.policy.ceiling import HotCache, Limits
from omlxd.policy.decision import Decision
from omlxd.policy.memory_state import MemoryState
from omlxd.policy.readings import AllocatorSample, MemoryReading, ModelView
from omlxd.pool.pool import EnginePool

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Activity:
    """Sets how often the guard looks."""

    loading: bool
    active: bool | None
    """Some engine has work; None when unknown."""
    loaded: bool


@dataclass(frozen=True, slots=True)
class GuardPorts:
    """Attributes:
    clock: in seconds; goes on while the machine sleeps.
    read: one reading at the given time; may block, so it is called in a thread.
    sample: the allocator's numbers, fresh when the device thread is idle; None before it is up.
    apply: carries out one action of a decision, and returns its outcome.
    after_tick: called after each tick with the memory that the guard has published.
    footprints: own footprint and graphics footprint now; a cheap call.
    latest_sample: the allocator's last numbers, without asking for new ones.
    wired_limit: the limit that the user set in the kernel, in bytes; 0 is the driver's default.
    reclaimed: bytes that reclaims of the allocator's buffer cache gave back since the start.
    hot_cache, image_cache_bytes: the caches that can be shrunk; none by default.
    """

    clock: Callable[[], float]
    read: Callable[[float], MemoryReading]
    sample: Callable[[], Awaitable[AllocatorSample | None]]
    models: Callable[[], tuple[ModelView, ...]]
    activity: Callable[[], Activity]
    apply: Callable[[Action, Decision], Awaitable[ActionOutcome]]
    set_limits: Callable[[Limits], None]
    after_tick: Callable[[MemoryState | None], None]
    footprints: Callable[[], tuple[int | None, int | None]] = lambda: (None, None)
    latest_sample: Callable[[], AllocatorSample | None] = lambda: None
    wired_limit: Callable[[], int | None] = lambda: None
    reclaimed: Callable[[], int] = lambda: 0
    hot_cache: Callable[[], HotCache | None] = lambda: None
    image_cache_bytes: Callable[[], int | None] = lambda: 0


@dataclass(frozen=True, slots=True)
class GuardParts:
    """The parts of the daemon that the guard reads and acts on.

    Attributes:
        open_requests: how many requests the API holds.
        queue_deadline: seconds that a request waits on the device thread while admission is paused.
        after_tick: called after each tick.
    """

    host: Host
    reader: HostReader
    sampler: AllocatorSampler
    engine: Engine
    pool: EnginePool
    open_requests: Callable[[], int]
    queue_deadline: float
    clock: Callable[[], float]
    after_tick: Callable[[], None] = lambda: None

    def ports(self) -> GuardPorts:
        executor = ActionExecutor(
            engine=self.engine,
            engine_up=lambda: self.sampler.up,
            models=self.pool.apply,
            release_free_memory=self.reader.release,
        )
        return GuardPorts(
            clock=self.clock,
            read=self.reader.read,
            sample=self.sampler.sample,
            models=self.pool.views,
            activity=self._activity,
            apply=executor.apply,
            set_limits=self.engine.set_limits,
            after_tick=self._after_tick,
            footprints=self.host.footprints,
            latest_sample=lambda: self.sampler.latest,
            wired_limit=self.host.wired_limit,
            reclaimed=lambda: self.engine.reclaimed_bytes,
        )

    def _activity(self) -> Activity:
        models = self.pool.views()
        return Activity(
            loading=any(model.loading for model in models),
            active=self.open_requests() > 0 or any(model.busy for model in models),
            loaded=any(not model.loading for model in models),
        )

    def _after_tick(self, memory: MemoryState | None) -> None:
        self.pool.check_idle()
        self.after_tick()
        if memory is None or not memory.limits.admission_paused:
            return
        failed = self.engine.requests.fail_queued(
            self.queue_deadline, lambda request: waited(memory, request.age)
        )
        if failed:
            log.warning("paused_requests_failed", requests=failed, after=self.queue_deadline)
