"""Builds every part of the daemon and hands each what it needs; nothing runs yet."""

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from omlxd.api.app import create_app
from omlxd.api.open_requests import OpenRequests
from omlxd.api.services import Identity, Services
from omlxd.backend.mlx.backend import MlxBackend
from omlxd.backend.mlx.tokenizer import load_tokenizer
from omlxd.config.load import Config
from omlxd.daemon.instance import Instance
from omlxd.daemon.life import Life
from omlxd.daemon.server import HttpServer
from omlxd.engine.handle import Engine
from omlxd.host.clock import continuous_clock
from omlxd.host.protocol import Host
from omlxd.host.select import open_host
from omlxd.pool.pool import EnginePool
from omlxd.pool.protocol import PoolPorts
from omlxd.text.template import PromptMaker


@dataclass(frozen=True, slots=True)
class Parts:
    engine: Engine
    pool: EnginePool
    host: Host
    life: Life
    server: HttpServer


def build(
    config: Config,
    listener: socket.socket,
    instance: Instance,
    *,
    on_death: Callable[[BaseException], None],
) -> Parts:
    clock = continuous_clock
    engine = Engine(MlxBackend(config.backend), config.engine, clock, on_death=on_death)
    host = open_host()
    ports = PoolPorts(
        engine=engine,
        load_tokenizer=load_tokenizer,
        clock=clock,
        release_memory=host.release_free_memory,
    )
    pool = EnginePool(config.models, model_roots(config, os.environ), ports)
    open_requests = OpenRequests(clock)
    life = Life(lambda: len(open_requests))
    app = _app(config, instance, engine, pool, life, open_requests)
    return Parts(engine, pool, host, life, HttpServer(app, listener))


def _app(
    config: Config,
    instance: Instance,
    engine: Engine,
    pool: EnginePool,
    life: Life,
    open_requests: OpenRequests,
) -> FastAPI:
    services = Services(
        identity=Identity(
            instance_id=instance.id,
            version=instance.version,
            host=instance.host,
            port=instance.port,
            started_at=continuous_clock(),
            clock=continuous_clock,
            unix_clock=time.time,
        ),
        options=config.api,
        pool=pool,
        prompts=PromptMaker(config.text),
        phase=lambda: life.phase,
        requests=engine.requests,
        open_requests=open_requests,
    )
    return create_app(services)


def model_roots(config: Config, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders to look for models in: those configured, else ours and Hugging Face's cache."""
    if config.models.dirs is not None:
        return tuple(Path(name).expanduser().absolute() for name in config.models.dirs)
    return config.places.models, hub_cache(environ)


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps models, by its own variables, without importing it."""
    if named := environ.get("HF_HUB_CACHE"):
        return Path(named).expanduser()
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = environ.get("HF_HOME") or f"{cache}/huggingface"
    return Path(home).expanduser() / "hub"
