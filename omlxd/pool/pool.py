"""The engine pool: the models in memory, and the requests that use them or wait for them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from omlxd.engine.messages import ModelInfo
from omlxd.errors import (
    InvalidRequest,
    MemoryPressureAborted,
    ModelNotFound,
    OmlxdError,
    ShuttingDown,
)
from omlxd.library.catalog import Catalog, CatalogModel
from omlxd.library.library import Library
from omlxd.model_settings.options import ModelSettings
from omlxd.model_settings.settings import FILE
from omlxd.policy.actions import AbortLoads, Action, ActionOutcome, EvictModel, MarkPendingUnload
from omlxd.policy.readings import ModelView
from omlxd.pool.admission import Fit, FitQuery, MemoryAdmission
from omlxd.pool.failures import cooling_down, too_many_wait
from omlxd.pool.measured_sizes import SIZES_FILE, MeasuredSizes
from omlxd.pool.options import PoolOptions
from omlxd.pool.ports import PoolPorts
from omlxd.pool.queue import in_queue
from omlxd.pool.record import Lease, ModelRecord, Waiter, views
from omlxd.pool.residency import Residency
from omlxd.pool.state_file import BackgroundStateFile
from omlxd.pool.states import Failed, Ready
from omlxd.pool.status import ModelStatus, broken_status, model_status
from omlxd.pool.tokenizers import TokenizerCache
from omlxd.text.protocol import Tokenizer
from omlxd.timing import pause

ONE_POLL: Final = 1.0
"""Seconds; if an unload for the guard takes longer, it is reported as in flight."""
LOAD_ABORTED: Final = (
    "Loading the model was stopped to keep the machine from running out of memory."
)


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
        self._settings_file = BackgroundStateFile(ports.state, FILE)
        self._sizes_file = BackgroundStateFile(ports.state, SIZES_FILE)
        self._sizes = MeasuredSizes(self._sizes_file.write)
        self._admission = MemoryAdmission(ports, self._sizes)
        self._tokenizers = TokenizerCache(
            ports.load_tokenizer, options.tokenizer_limit, own_thread=ports.own_thread
        )
        self._residency = Residency(options, ports, self._admission, self._sizes, self._tokenizers)
        self._stopping = False
        library.on_change(self._follow)

    @property
    def preloading(self) -> tuple[str, ...]:
        """Pinned models that are still to be loaded, and have not failed."""
        records = self._residency.records.values()
        return tuple(r.id for r in records if r.preload and not isinstance(r.state, Failed))

    @property
    def troubles(self) -> tuple[str, ...]:
        """One line for each problem with the pool's own state files."""
        files = (self._settings_file, self._sizes_file)
        return tuple(file.trouble for file in files if file.trouble is not None)

    async def change_settings(self, model_id: str, changes: Mapping[str, Any]) -> ModelSettings:
        """Set keys of ModelSettings, or ``default``; None resets a key to its configured value.

        Takes effect at once and is on disk when this returns. Raises ModelNotFound,
        InvalidRequest that names the wrong key, StateUnwritable.
        """
        on_disk, settings = self._library.ids, self._library.settings
        if model_id not in on_disk and model_id not in settings.ids:
            raise ModelNotFound(model_id)
        settings.change(model_id, changes, on_disk)
        changed = settings.of(model_id)
        self._residency.follow_settings(model_id, changed, changes)
        await self._settings_file.save(settings.to_json())
        return changed

    async def tokenizer(self, model: CatalogModel) -> Tokenizer:
        """The tokenizer of exactly these files. Raises the errors of its loader."""
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
        """Wait for a lease on the loaded model; it is given back exactly once.

        ``deadline`` is a time of the pool's clock; None: the configured one. ``made_for``: the
        fingerprint of the files that the request's tokens are for; no others serve it. Raises
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
        """Load it with its tokenizer. If its only waiting caller is cancelled, the load is too."""
        await self.tokenizer(self._record(model_id).newest)
        record = self._record(model_id)
        if isinstance(record.state, Ready):
            return record.state.info
        async with self.acquire(model_id, request_id=f"load {model_id}") as lease:
            return lease.info

    async def unload(self, model_id: str) -> int:
        """Unload it now if idle, otherwise when drained; returns freed bytes, 0 if not loaded."""
        deadline = self._ports.clock() + self._options.drain_deadline
        freed = self._residency.unload(self._record(model_id), deadline)
        return 0 if freed is None else await freed

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
        error = record.replaced_since(made_for) or cooling_down(record.state, now)
        error = error or too_many_wait(record.id, len(record.waiting), self._ports.most_waiting)
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

    # What others read

    def statuses(self) -> tuple[ModelStatus, ...]:
        """All models by id, including broken ones."""
        records, settings = self._residency.records, self._library.settings
        now, default, memory = self._ports.clock(), self._library.default_id(), self._ports.memory()
        monitoring = memory is not None and not memory.enforce
        positions = {record.id: n for n, record in enumerate(in_queue(records.values()), 1)}
        known = []
        for record in records.values():
            self._residency.loader.note_progress(record)
            status = model_status(
                record,
                now,
                monitoring=monitoring,
                activity=self._ports.engine.view(record.id),
                tokenizer_failure=self._tokenizers.failure(record.newest),
                idle_timeout=self._options.idle_timeout,
            )
            known.append(
                replace(
                    status,
                    default=record.id == default,
                    position=positions.get(record.id),
                    measured_bytes=self._sizes.measured(record.model),
                )
            )
        broken = [
            broken_status(model, settings.of(model.id), default=model.id == default)
            for model in self._library.catalog.broken.values()
            if model.id not in records
        ]
        return tuple(sorted([*known, *broken], key=lambda status: status.id))

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
        query = FitQuery(context, concurrency, self._residency.loader.promised(but=record))
        return self._admission.preview(record, tuple(self._residency.records.values()), query)

    def views(self) -> tuple[ModelView, ...]:
        """Models that are in memory or being loaded, as the guard sees them."""
        return views(self._residency.records.values(), self._ports.engine)

    # What the guard asks for

    async def apply(self, action: Action, load_error: OmlxdError | None = None) -> ActionOutcome:
        """Carry out an action of the guard. Refuse it if it is out of date or not about models.
        ``load_error`` is the error of the loads that it stops."""
        match action:
            case EvictModel(model_id=model_id):
                freed = self._residency.evict(model_id)
                if freed is None:
                    return ActionOutcome(action, accepted=False)
                return await self._within_a_poll(action, freed)
            case MarkPendingUnload(model_id=model_id):
                new, unloading = self._residency.mark_for_unload(model_id)
                return ActionOutcome(action, accepted=new, in_flight=unloading)
            case AbortLoads(model_ids=model_ids):
                error = load_error or MemoryPressureAborted(LOAD_ABORTED, retry_after=10.0)
                taken = [self._residency.abort_load(name, error) for name in model_ids]
                return ActionOutcome(action, accepted=any(taken), in_flight=any(taken))
            case _:
                return ActionOutcome(action, accepted=False)

    async def _within_a_poll(self, action: Action, freed: asyncio.Future[int]) -> ActionOutcome:
        over = asyncio.ensure_future(pause(self._ports.call_later, ONE_POLL))
        either: tuple[asyncio.Future[Any], ...] = (freed, over)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not freed.done():
            return ActionOutcome(action, in_flight=True)
        return ActionOutcome(action, freed=freed.result())

    def check_idle(self) -> None:
        """Called after each tick of the guard: drop unused tokenizers, look at waiting loads."""
        self._tokenizers.retain(
            r.newest.fingerprint
            for r in self._residency.records.values()
            if r.wanted or r.info is not None
        )
        self._residency.advance()

    # Lifecycle

    async def start(self) -> None:
        """Read the state files, then begin to scan and to preload."""
        self._library.settings.restore(await self._settings_file.read())
        self._sizes.restore(await self._sizes_file.read())
        self._library.start(self._options.scan_every)

    async def stop(self) -> None:
        """Refuse waiting requests, end running ones, unload everything."""
        self._stopping = True
        self._library.stop()
        self._residency.stop(ShuttingDown("The server is shutting down."))
        await self._residency.loader.join()
        await self._sizes_file.flush()
        await self._settings_file.flush()

    async def rescan(self) -> Catalog:
        """Read all roots again; returns when each was read or has reached the time limit.

        Failures of loads and tokenizers are forgotten, as the user may have repaired the files.
        """
        catalog = await self._library.rescan()
        self._tokenizers.forget_failures(but=())
        self._residency.forget_failures()
        return catalog

    def _follow(self, catalog: Catalog) -> None:
        self._tokenizers.forget_failures(but=(m.fingerprint for m in catalog.models.values()))
        self._residency.follow(catalog, self._library.settings)
