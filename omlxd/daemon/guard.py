"""Composes the memory guard: its settings, its ports, and what it says when it starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from omlxd.config.load import Config, Origin
from omlxd.enforcer import explain
from omlxd.enforcer.control import GuardControl
from omlxd.enforcer.enforcer import Enforcer
from omlxd.enforcer.executor import ActionExecutor
from omlxd.enforcer.options import WiredLimit
from omlxd.enforcer.ports import Activity, GuardPorts
from omlxd.enforcer.readers import AllocatorSampler, HostReader, with_footprints
from omlxd.enforcer.settings import FIELDS, From, GuardSettings
from omlxd.enforcer.wiring import wired_limit
from omlxd.engine.handle import Engine
from omlxd.host.protocol import Host
from omlxd.memory_text import wired_limit_warnings
from omlxd.policy.ceiling import static_term
from omlxd.policy.memory_state import MemoryState
from omlxd.policy.tiers import Tier, clamps
from omlxd.policy.usage import measure_usage
from omlxd.pool.pool import EnginePool
from omlxd.store import StateFile

log = structlog.get_logger(__name__)

FILE = "guard.json"
ARRIVAL_INTERVAL = 0.5
"""Seconds; arrivals closer together than half a poll wake the guard once."""
FIRST_TICK_LIMIT = 5.0
"""Seconds the start waits for the guard to know the machine."""

_FROM = {Origin.FLAG: From.FLAG, Origin.ENVIRONMENT: From.ENVIRONMENT, Origin.FILE: From.FILE}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the guard is made from. ``open_requests`` counts those the API holds;
    ``after_tick`` is called after each look at the machine."""

    host: Host
    reader: HostReader
    runtime: AllocatorSampler
    engine: Engine
    pool: EnginePool
    open_requests: Callable[[], int]
    clock: Callable[[], float]
    after_tick: Callable[[], None] = lambda: None


class Guard:
    """The running guard; everything is called on the event loop."""

    def __init__(
        self, settings: GuardSettings, around: Surroundings, *, queue_deadline: float
    ) -> None:
        """``queue_deadline``: seconds that a paused request waits on the device thread."""
        self._around = around
        self._queue_deadline = queue_deadline
        self._last_arrival: float | None = None
        self.settings = settings
        self.enforcer = Enforcer(self._ports(), self.settings)
        self.control = GuardControl(self.enforcer, self.settings)

    def _ports(self) -> GuardPorts:
        around = self._around
        executor = ActionExecutor(
            engine=around.engine,
            engine_up=lambda: around.runtime.up,
            models=around.pool.apply,
            release_free_memory=around.reader.release,
        )
        return GuardPorts(
            clock=around.clock,
            read=around.reader.read,
            sample=around.runtime.sample,
            models=around.pool.views,
            activity=self._activity,
            apply=executor.apply,
            set_limits=around.engine.set_limits,
            after_tick=self._after_tick,
            reclaimed=lambda: around.engine.reclaimed_bytes,
        )

    async def run(self) -> None:
        """Tick until cancelled."""
        await self.enforcer.run()

    async def begin(self) -> None:
        """Once the runtime is up: look at everything, and warn of what the user should know."""
        for line in self.settings.dropped:
            log.warning("guard_setting_dropped", reason=line)
        if not await self.enforcer.look_now(FIRST_TICK_LIMIT):
            log.warning("guard_not_ready", waited=FIRST_TICK_LIMIT)
        entry = self.enforcer.latest
        if entry is None:
            return
        policy, ceilings = self.settings.in_force.policy, entry.decision.ceilings
        for clamp in clamps(policy, ceilings.static, ceilings.metal):
            log.warning("guard_setting_clamped", cause=clamp.cause.value, reason=clamp.text)
        for warning in wired_limit_warnings(ceilings, self._around.host.wired_limit()):
            log.warning("wired_limit_warning", reason=warning)

    def arrived(self) -> None:
        """A request has come: look again, and often for a while."""
        now = self._around.clock()
        last = self._last_arrival
        if last is None or not 0 <= now - last < ARRIVAL_INTERVAL:
            self._last_arrival = now
            self.enforcer.wake(active=True)

    def memory(self) -> MemoryState | None:
        """For the admission of a load: the last tick's bounds, usage as it is now."""
        entry = self.enforcer.latest
        if entry is None or not self.enforcer.running:
            return None
        around, now = self._around, self._around.clock()
        reading = with_footprints(entry.reading, *around.host.footprints(), now)
        usage, _ = measure_usage(reading, around.runtime.latest, self.enforcer.release, now)
        return MemoryState(
            usage=usage,
            ceilings=entry.decision.ceilings,
            paused=entry.decision.paused,
            enforce=self.settings.in_force.policy.enforce,
            reading=reading,
            age=now - entry.last_at,
        )

    def _activity(self) -> Activity:
        models = self._around.pool.views()
        return Activity(
            loading=any(model.loading for model in models),
            active=self._around.open_requests() > 0 or any(model.busy for model in models),
            loaded=any(not model.loading for model in models),
        )

    def _after_tick(self) -> None:
        self._around.pool.check_idle()
        self._around.after_tick()
        entry = self.enforcer.latest
        if entry is None or not entry.decision.limits.admission_paused:
            return
        decision = entry.decision
        failed = self._around.engine.fail_queued(
            self._queue_deadline, lambda request: explain.waited(decision, request.age)
        )
        if failed:
            log.warning("paused_requests_failed", requests=failed, after=self._queue_deadline)


def guard_settings(config: Config) -> GuardSettings:
    """Configured, with what was set over the API and survives."""
    file = StateFile(config.paths.state, FILE)
    stored = file.read()
    if file.trouble is not None:
        log.error("guard_settings_lost", reason=file.trouble)
    return GuardSettings(
        configured=config.guard.policy(),
        origins=_origins(config.origins),
        stored=stored,
        store=file.write,
    )


def wired_limit_at_start(
    wish: WiredLimit | int, tier: Tier, host_now: Callable[[], Host]
) -> int | None:
    """What the runtime is to wire; None leaves it alone, as does a machine that cannot be read."""
    if wish is WiredLimit.OFF:
        return None
    try:
        host = host_now()
        return wired_limit(wish, host.wired_limit(), static_term(host.total_memory(), tier))
    except (OSError, ValueError) as error:
        log.warning("wired_limit_unknown", reason=str(error))
        return None


def _origins(origins: Mapping[str, Origin]) -> dict[str, From]:
    """By key of the API; the configuration calls the ceiling by its size, not its unit."""
    named = {key: key for key in FIELDS} | {"custom_ceiling_gb": "custom_ceiling"}
    return {
        key: _FROM[origins[f"guard.{option}"]]
        for key, option in named.items()
        if f"guard.{option}" in origins
    }
