"""The engine pool: which models are in memory, who uses them, and who waits for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from omlxd.engine.messages import ModelFacts
from omlxd.policy.readings import ModelView
from omlxd.pool.catalog import Catalog, CatalogModel
from omlxd.pool.options import ModelSettings, PoolOptions
from omlxd.pool.protocol import PoolPorts
from omlxd.pool.record import Lease
from omlxd.pool.status import ModelStatus
from omlxd.text.protocol import Tokenizer


class EnginePool:
    """Lives on the event loop; every method is called there."""

    def __init__(self, options: PoolOptions, roots: tuple[Path, ...], ports: PoolPorts) -> None:
        raise NotImplementedError

    @property
    def catalog(self) -> Catalog:
        raise NotImplementedError

    @property
    def preloading(self) -> tuple[str, ...]:
        """Pinned models that are still to be loaded at start."""
        raise NotImplementedError

    def resolve(self, name: str | None) -> CatalogModel:
        """The model that ``name`` means; the default model for None.

        Raises ModelNotFound, AmbiguousModel, ModelBroken, InvalidRequest (no default),
        Starting (the first scan is not over).
        """
        raise NotImplementedError

    def settings(self, model_id: str) -> ModelSettings:
        raise NotImplementedError

    def context_length(self, model_id: str) -> int | None:
        """The effective one: the model's own, or less where the settings say so."""
        raise NotImplementedError

    async def tokenizer(self, model_id: str) -> Tokenizer:
        """Raises ModelNotFound, ModelBroken."""
        raise NotImplementedError

    @asynccontextmanager
    async def acquire(
        self, model_id: str, *, request_id: str, deadline: float | None = None
    ) -> AsyncIterator[Lease]:
        """A lease on the loaded model, once it is there. ``deadline``: of the pool's clock."""
        raise NotImplementedError
        yield

    async def load(self, model_id: str) -> ModelFacts:
        """Returns once it is in memory; cancelled with its caller when nobody else waits."""
        raise NotImplementedError

    async def unload(self, model_id: str) -> int:
        """Now when idle, else when drained; bytes freed, 0 when it was not loaded."""
        raise NotImplementedError

    def statuses(self) -> tuple[ModelStatus, ...]:
        raise NotImplementedError

    def views(self) -> tuple[ModelView, ...]:
        raise NotImplementedError

    def check_idle(self) -> None:
        """Unload what nobody used for its idle timeout; called after each tick of the guard."""
        raise NotImplementedError

    async def start(self) -> None:
        """Begin to scan and to preload; returns at once."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Refuse what waits, end what runs, unload everything."""
        raise NotImplementedError

    async def rescan(self) -> Catalog:
        """Look at all roots again; returns when all were read or ran out of time."""
        raise NotImplementedError
