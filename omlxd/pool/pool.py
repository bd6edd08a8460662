"""The engine pool: which models are in memory, who uses them, and who waits for them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from omlxd.engine.messages import ModelInfo
from omlxd.errors import InvalidRequest, ModelNotFound, OmlxdError, ShuttingDown
from omlxd.library.catalog import Catalog, CatalogModel
from omlxd.library.library import Library
from omlxd.model_settings.options import ModelSettings
from omlxd.model_settings.settings import FILE
from omlxd.policy.actions import Action, ActionOutcome
from omlxd.policy.readings import ModelView
from omlxd.pool import guard
from omlxd.pool.admit import FitAsk, MemoryAdmission
from omlxd.pool.entry import DrainReason, Failed, Ready
from omlxd.pool.failures import cooling_down, replaced, too_many_wait
from omlxd.pool.fit import Fit
from omlxd.pool.follow import follow, follow_change
from omlxd.pool.measured_sizes import SIZES_FILE, MeasuredSizes
from omlxd.pool.options import PoolOptions
from omlxd.pool.protocol import PoolPorts
from omlxd.pool.record import Lease, ModelRecord, Waiter
from omlxd.pool.residency import Residency
from omlxd.pool.state_file import BackgroundStateFile
from omlxd.pool.status import ModelStatus, statuses
from omlxd.pool.tokenizers import TokenizerCache
from omlxd.pool.unload import unload
from omlxd.pool.view import views
from omlxd.text.protocol import Tokenizer


class EnginePool:
    """Lives on the event loop; every method is called there."""

    def __init__(
        self,
        options: PoolOptions,
        library: Library,
        ports: PoolPorts,
    ) -> None:
        self._options = options
        self._ports = ports
        self._library = library
        self._sizes = MeasuredSizes()
        self._admission = MemoryAdmission(ports, self._sizes)
        self._tokenizers = TokenizerCache(
            ports.load_tokenizer, options.tokenizer_limit, own_thread=ports.own_thread
        )
        books = (self._admission, self._measured, self._tokenizers.get)
        self._residency = Residency(options, ports, *books)
        self._settings_file = BackgroundStateFile(ports.state, FILE)
        self._sizes_file = BackgroundStateFile(ports.state, SIZES_FILE)
        self._stopping = False
        library.on_change(self._follow)

    @property
    def preloading(self) -> tuple[str, ...]:
        """Pinned models that are still to be loaded, and have not failed."""
        records = self._residency.records.values()
        return tuple(r.id for r in records if r.preload and not isinstance(r.state, Failed))

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong with the pool's own state files, a line each."""
        files = (self._settings_file, self._sizes_file)
        return tuple(file.trouble for file in files if file.trouble is not None)

    async def change_settings(self, model_id: str, changes: Mapping[str, Any]) -> ModelSettings:
        """Set keys of ModelSettings, or ``default``; None resets a key to the configuration's.

        Takes effect at once and is on disk when this returns. Raises ModelNotFound,
        InvalidRequest with the key at fault, StateUnwritable.
        """
        on_disk, settings = self._library.ids, self._library.settings
        if model_id not in on_disk and model_id not in settings.ids:
            raise ModelNotFound(model_id)
        settings.change(model_id, changes, on_disk)
        changed = settings.of(model_id)
        follow_change(self._residency, model_id, changed, changes)
        await self._settings_file.save(settings.to_json())
        return changed

    async def tokenizer(self, model: CatalogModel) -> Tokenizer:
        """Of exactly these files. Raises what the loader raises."""
        return await self._tokenizers.get(model)

    # Using models

    @asynccontextmanager
    async def acquire(
        self,
        model_id: str,
        *,
        request_id: str,
        deadline: float | None = None,
        made_for: str | None = None,
    ) -> AsyncIterator[Lease]:
        """A lease on the loaded model, once it is there; given back exactly once.

        ``deadline`` is a time of the pool's clock; none: the configured one. ``made_for``: the
        fingerprint that the request's tokens are for; it is served by no other. Raises
        ModelNotFound, ModelBroken, ModelLoadFailed, ModelTooLarge, MemoryPressure,
        ModelUnloading, QueueFull or ShuttingDown.
        """
        record = self._record(model_id)
        waiter = self._enqueue(record, request_id, deadline, made_for)
        try:
            yield await waiter.granted
        finally:
            # Nothing is awaited here, so no cancellation can come between.
            self._residency.leave(record, waiter)

    async def load(self, model_id: str) -> ModelInfo:
        """With its tokenizer; cancelled with its caller when nobody else waits for it."""
        await self.tokenizer(self._record(model_id).newest)
        record = self._record(model_id)
        if isinstance(record.state, Ready):
            return record.state.info
        async with self.acquire(model_id, request_id=f"load {model_id}") as lease:
            return lease.info

    async def unload(self, model_id: str) -> int:
        """Now when idle, else when drained; bytes freed, 0 when it was not loaded."""
        deadline = self._ports.clock() + self._options.drain_deadline
        return await unload(self._record(model_id), self._residency, deadline)

    def _record(self, model_id: str) -> ModelRecord:
        record = self._residency.records.get(model_id)
        if record is None or record.gone:
            raise ModelNotFound(model_id)
        return record

    def _enqueue(
        self, record: ModelRecord, request_id: str, deadline: float | None, made_for: str | None
    ) -> Waiter:
        if self._stopping:
            raise ShuttingDown("The server is shutting down.")
        now = self._ports.clock()
        error = replaced(record, made_for) or cooling_down(record, now)
        error = error or too_many_wait(record, self._ports.most_waiting)
        if error is not None:
            raise error
        waiter = Waiter(
            number=self._residency.next_number(),
            request_id=request_id,
            since=now,
            deadline=now + self._options.queue_deadline if deadline is None else deadline,
            granted=asyncio.get_running_loop().create_future(),
            made_for=made_for,
        )
        self._residency.enqueue(record, waiter)
        return waiter

    # What others look at

    def statuses(self) -> tuple[ModelStatus, ...]:
        """All models, the broken ones too, by id."""
        books = (self._sizes, self._tokenizers)
        return statuses(self._residency, self._library, *books, self._ports)

    def fit(self, model_id: str, *, context: int, concurrency: int) -> Fit:
        """Would it fit with ``concurrency`` requests of ``context`` tokens (both at least 1)?

        Raises ModelNotFound, InvalidRequest.
        """
        record = self._record(model_id)
        longest = self._library.context_length(model_id)
        if longest is not None and context > longest:
            raise InvalidRequest(
                f"Model '{model_id}' has a context of {longest} tokens.", param="context"
            )
        records = tuple(self._residency.records.values())
        ask = FitAsk(context, concurrency, self._residency.device.promised(records, model_id))
        return self._admission.preview(record, records, ask)

    def views(self) -> tuple[ModelView, ...]:
        """Models in memory or on their way there, as the guard sees them."""
        return views(self._residency.records.values(), self._ports.engine)

    async def apply(self, action: Action, load_error: OmlxdError | None = None) -> ActionOutcome:
        """Carry out what the guard decided; what is not about models is not accepted."""
        return await guard.apply(action, self._residency, self._options, self._ports, load_error)

    def check_idle(self) -> None:
        """After each tick of the guard: spare tokenizers, and the loads that wait for its look."""
        self._tokenizers.retain(
            r.newest.fingerprint
            for r in self._residency.records.values()
            if r.wanted or r.info is not None
        )
        self._residency.advance()

    # Lifecycle

    async def start(self) -> None:
        """Recall what was remembered, then begin to scan and to preload."""
        self._library.settings.restore(await self._settings_file.read())
        self._sizes.restore(await self._sizes_file.read())
        self._library.start(self._options.scan_every)

    async def stop(self) -> None:
        """Refuse what waits, end what runs, unload everything."""
        self._stopping = True
        self._library.stop()
        residency, now = self._residency, self._ports.clock()
        for record in list(residency.records.values()):
            record.preload = False
            residency.fail_waiting(record, ShuttingDown("The server is shutting down."))
            residency.drain(record, DrainReason.STOPPING, now)
        residency.advance()
        await residency.device.join()
        await self._sizes_file.flush()
        await self._settings_file.flush()

    async def rescan(self) -> Catalog:
        """Read all roots again; returns when all were read or ran out of time.

        Failures of loads and tokenizers are forgotten, as the user may have repaired the files.
        """
        catalog = await self._library.rescan()
        self._tokenizers.forget_failures(but=())
        self._residency.forget_failures()
        return catalog

    def _measured(self, model: CatalogModel, size: int, sure: bool) -> None:
        if self._sizes.note(model, size, sure=sure):
            self._sizes_file.write(self._sizes.to_json())

    def _follow(self, catalog: Catalog) -> None:
        self._tokenizers.forget_failures(but=(m.fingerprint for m in catalog.models.values()))
        follow(self._residency, catalog, self._library.settings)
        self._residency.advance()
