"""A real engine on MLX, with tiny models, and mlx-lm's own generation to compare with."""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from omlxd.backend.mlx.backend import MlxBackend, import_mlx_lm
from omlxd.backend.protocol import BackendOptions
from omlxd.engine.handle import Engine
from omlxd.engine.options import EngineOptions
from tests.support.tiny_models import tiny_model

# Before a test module imports any of it in its own way.
import_mlx_lm()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``tiny(arch, **overrides)``: the folder of a tiny model, made once a session."""
    root = tmp_path_factory.mktemp("tiny")
    return lambda arch, **overrides: tiny_model(root, arch, **overrides)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    deaths: list[BaseException] = []
    engine = Engine(
        MlxBackend(BackendOptions(load_piece=1024**2)),
        EngineOptions(),
        time.monotonic,
        on_death=deaths.append,
    )
    engine.start()
    await engine.ready()
    yield engine
    assert await engine.stop(30)
    assert deaths == []
