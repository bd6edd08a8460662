"""Builds every part of the daemon and connects the parts. Nothing runs yet."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from omlxd.api.app import create_app
from omlxd.api.guard_view import status_keys
from omlxd.api.keys import KeyRing
from omlxd.api.services import Identity, ServerPhase, Services
from omlxd.backend.mlx.backend import MlxBackend
from omlxd.backend.mlx.tokenizer import load_tokenizer
from omlxd.config.load import Config
from omlxd.daemon.listeners import Listeners
from omlxd.daemon.process import Instance
from omlxd.daemon.server import ConnectionLimits, HttpServer
from omlxd.enforcer.enforcer import Enforcer
from omlxd.enforcer.ports import GuardParts
from omlxd.enforcer.readers import AllocatorSampler, HostReader, wired_limit_at_start
from omlxd.enforcer.settings import guard_settings
from omlxd.engine.handle import Engine
from omlxd.engine.registry import RequestRegistry
from omlxd.host.clock import SleepWatch, awake_clock, continuous_clock
from omlxd.host.protocol import Host, open_host
from omlxd.host.sleep_inhibitor import SleepInhibitor, open_sleep_inhibitor
from omlxd.library.library import Library
from omlxd.library.scanner import model_roots
from omlxd.model_settings.settings import ModelSettingsStore
from omlxd.pool.pool import EnginePool
from omlxd.pool.ports import PoolPorts
from omlxd.text.template import PromptMaker

IDLE_POLL = 0.02
"""Seconds between two checks of the open requests, while the daemon waits for their end."""


class Lifecycle:
    """The phase of the server: starting, ready, draining. It never goes back."""

    def __init__(self, open_requests: Callable[[], int]) -> None:
        self._phase = ServerPhase.STARTING
        self._open_requests = open_requests

    @property
    def phase(self) -> ServerPhase:
        return self._phase

    def started(self) -> None:
        if self._phase is ServerPhase.STARTING:
            self._phase = ServerPhase.READY

    def drain(self) -> None:
        self._phase = ServerPhase.DRAINING

    async def idle(self, limit: float, force_exit: asyncio.Event) -> bool:
        """Wait until no request is open. False when ``limit`` seconds pass or ``force_exit`` is set
        first."""
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        while self._open_requests():
            if force_exit.is_set() or loop.time() >= end:
                return False
            await asyncio.sleep(IDLE_POLL)
        return True


@dataclass(frozen=True, slots=True)
class Parts:
    engine: Engine
    pool: EnginePool
    host: Host
    guard: Enforcer
    lifecycle: Lifecycle
    sleep_inhibitor: SleepInhibitor
    server: HttpServer


def build(
    config: Config,
    listeners: Listeners,
    instance: Instance,
    *,
    on_death: Callable[[str, BaseException], None],
) -> Parts:
    """``on_death`` gets the name of the part that died, and the error."""
    clock = continuous_clock
    origins = {name: origin.value for name, origin in config.origins.items()}
    settings = guard_settings(config.guard.policy(), origins, config.paths.state)
    tier = settings.in_force.policy.tier
    wired = wired_limit_at_start(config.guard.wired_limit, tier, open_host)
    backend = MlxBackend(config.backend, wired_limit=wired)

    def requests_changed() -> None:
        sleep_inhibitor.update()
        engine.expect(requests.arriving)

    requests = RequestRegistry(
        awake_clock, arrived=lambda: guard.arrived(), changed=requests_changed
    )
    engine = Engine(
        backend,
        config.engine,
        awake_clock,
        on_death=partial(on_death, "mlx"),
        sample_clock=clock,
        requests=requests,
    )
    sampler = AllocatorSampler(engine, clock, working=lambda: requests.held() > 0)
    host = open_host(sampler.memory())
    # The guard reads the pool and the pool wakes the guard, so one of them is made later.
    reader = HostReader(host, SleepWatch(), woke_up=lambda: guard.wake(active=True))
    ports = PoolPorts(
        engine=engine,
        load_tokenizer=load_tokenizer,
        clock=awake_clock,
        wake=lambda: guard.wake(),
        usage=host.footprint,
        release_memory=reader.release_free_memory,
        memory=lambda: guard.memory(),
        on_eviction=lambda eviction: guard.evicted(eviction),
        state=config.paths.state,
        most_waiting=config.engine.max_concurrent + config.engine.max_waiting,
        died=partial(on_death, "pool"),
    )
    roots = model_roots(config.models.dirs, config.paths.models, os.environ)
    model_settings = ModelSettingsStore(config.models.settings, config.models.default)
    library = Library(roots, model_settings, config.models.scan_limit)
    pool = EnginePool(config.models, library, ports)

    sleep_inhibitor = open_sleep_inhibitor(
        lambda: len(requests) > 0 or any(model.loading for model in pool.views())
    )
    guard_parts = GuardParts(
        host=host,
        reader=reader,
        sampler=sampler,
        engine=engine,
        pool=pool,
        open_requests=lambda: len(requests),
        queue_deadline=config.models.queue_deadline,
        clock=clock,
        after_tick=sleep_inhibitor.update,
    )
    guard = Enforcer(guard_parts.ports(), settings)
    lifecycle = Lifecycle(lambda: len(requests))
    app = create_app(
        Services(
            identity=_identity(instance),
            options=config.api,
            library=library,
            pool=pool,
            prompts=PromptMaker(config.text),
            phase=lambda: lifecycle.phase,
            requests=requests,
            max_sequences=config.engine.max_concurrent + config.engine.max_waiting,
            guard=guard,
            guard_status=lambda: status_keys(guard),
            keys=KeyRing(
                listeners.keys,
                extra=[] if listeners.local_key is None else [listeners.local_key],
                open_when_empty=listeners.on_loopback,
            ),
        )
    )
    limits = ConnectionLimits(config.server.max_connections, config.server.head_timeout)
    server = HttpServer(app, listeners.sockets, limits)
    return Parts(engine, pool, host, guard, lifecycle, sleep_inhibitor, server)


def _identity(instance: Instance) -> Identity:
    return Identity(
        instance_id=instance.id,
        version=instance.version,
        host=instance.host,
        port=instance.port,
        started_at=instance.since,
        clock=continuous_clock,
        unix_clock=time.time,
    )
