"""Carries loads and unloads to the device thread, and waits for what they promise."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from dataclasses import replace
from typing import Any

import structlog

from omlxd.errors import (
    ModelLoadCancelled,
    ModelLoadFailed,
    OmlxdError,
)
from omlxd.library.catalog import CatalogModel
from omlxd.policy.admission import Admit
from omlxd.pool.entry import (
    GivenUp,
    Loaded,
    LoadFailed,
    Loading,
    Progressed,
    Started,
    UnloadBegun,
    Unloaded,
)
from omlxd.pool.failures import pause_after, without_paths
from omlxd.pool.ledger import Ledger
from omlxd.pool.options import PoolOptions
from omlxd.pool.protocol import LoadTicket, PoolPorts
from omlxd.pool.record import ModelRecord
from omlxd.pool.release import Release
from omlxd.pool.watched import watched

log = structlog.get_logger(__name__)

LARGEST_SURPLUS = 1.5
"""Times the weights; beyond it the measured growth was not the model's."""

FIRST_PREFILL_LIMIT = 5.0
"""Seconds for which a loaded model in use is kept the room for its first prefill."""

Done = Callable[[ModelRecord, OmlxdError | None], None]


Measured = Callable[[CatalogModel, int, bool], None]
"""Takes what a model took, and whether nothing else can have taken it."""


class Device:
    """Changes the records' states when the device thread has done its part."""

    def __init__(
        self,
        options: PoolOptions,
        ports: PoolPorts,
        done: Done,
        *,
        quiet: Callable[[], bool],
        measured: Measured,
        outgrown: Callable[[ModelRecord, int], None],
    ) -> None:
        """``quiet``: nothing runs, and at most one load; ``measured`` hears what models took;
        ``outgrown`` decides about a load that turns out to need more than it was promised."""
        self._options = options
        self._ports = ports
        self._done = done
        self._quiet = quiet
        self._measured = measured
        self._outgrown = outgrown
        self._release = Release(options, ports)
        self._ledger = Ledger()
        self._tasks: set[asyncio.Task[None]] = set()

    def promised(self, records: Iterable[ModelRecord], but: str | None = None) -> int:
        """Bytes that loads and first prefills of ``records`` may still allocate, ``but`` one's."""
        for record in records:
            self.note_progress(record)
        own = 0 if but is None else self._ledger.outstanding_of(but)
        return self._ledger.outstanding() - own

    def promised_to(self, model_id: str) -> int:
        """The same for one model."""
        return self._ledger.outstanding_of(model_id)

    def load(self, record: ModelRecord, plan: Admit, now: float) -> None:
        """From Queued to Loading; ends in Ready, Failed or Absent."""
        record.watched = watched(record, plan)
        record.happen(Started(now))
        record.load_aborted = None
        # The admission counted what the allocator pools as free.
        self._ports.engine.reclaim(when_idle=False)
        ticket = self._ports.engine.load(record.id, record.model.path)
        record.ticket = ticket
        before = self._in_use() if self._quiet() else None
        self.reserve(record, plan.reserve)
        self._spawn(self._await_load(record, ticket, before), f"load {record.id}")
        self._ports.wake()

    def reserve(self, record: ModelRecord, size: int) -> None:
        """Promise a load ``size`` bytes in place of what it was promised."""
        self._ledger.reserve(record.id, size)

    def unload(self, record: ModelRecord) -> None:
        """From Draining, without leases, to Unloading; ends in Absent."""
        self._ledger.release(record.id)
        record.happen(UnloadBegun())
        self._spawn(self._await_unload(record), f"unload {record.id}")

    def note_progress(self, record: ModelRecord) -> None:
        """Bring state and ledger up to what ticket and engine say."""
        ticket = record.ticket
        if ticket is None or not isinstance(record.state, Loading):
            if record.info is not None and not self._awaits_prefill(record):
                self._ledger.release(record.id)
            return
        if ticket.loaded_bytes is not None and ticket.total_bytes is not None:
            record.happen(Progressed(ticket.loaded_bytes, ticket.total_bytes))
            self._ledger.allocated(record.id, ticket.loaded_bytes)

    def _awaits_prefill(self, record: ModelRecord) -> bool:
        late = self._ports.clock() >= record.ready_at + FIRST_PREFILL_LIMIT
        return record.busy and not late and self._ports.engine.view(record.id).last_step_at is None

    async def join(self) -> None:
        """Wait for every load and unload in flight."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        # Not the caller's context: the request that set it off is one of many that it is for.
        task = asyncio.create_task(work, name=name, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("pool_task_died", task=task.get_name(), exc_info=error)
            self._ports.died(error)

    async def _await_load(
        self, record: ModelRecord, ticket: LoadTicket, before: int | None
    ) -> None:
        error: OmlxdError | None = None
        beyond = self._release.beyond_allocator()
        sizing = asyncio.create_task(self._await_size(record, ticket), name=f"size {record.id}")
        sizing.add_done_callback(self._ended)
        try:
            info = await ticket.result()
        except ModelLoadCancelled as cancelled:
            await self._gave_back(ticket, beyond)
            error = self._cancelled(record, cancelled)
        except OmlxdError as failure:
            await self._gave_back(ticket, beyond)
            error = self.fail(record, failure)
        except Exception as fault:
            # The boundary of this task: a fault in one load must not end the pool.
            log.exception("model_load_fault", model=record.id)
            error = self.fail(record, ModelLoadFailed(f"Loading failed: {fault!r}."))
        else:
            record.happen(Loaded(info))
            self._ledger.allocated(record.id, info.weights_bytes)
            record.ready_at = record.last_used = record.idle_since = self._ports.clock()
            record.failures = 0
            record.preload = False
            self._measure(record, before)
            log.info("model_ready", model=record.id, weights_bytes=info.weights_bytes)
        finally:
            sizing.cancel()
            record.ticket = None
            if record.info is None:
                self._ledger.release(record.id)
        self._done(record, error)
        self._ports.wake()

    async def _await_size(self, record: ModelRecord, ticket: LoadTicket) -> None:
        total = await ticket.size()
        self.note_progress(record)
        promised = self._ledger.promised_to(record.id)
        if total > promised:
            log.warning("model_outgrows", model=record.id, promised=promised, needed=total)
            self._outgrown(record, total)

    async def _gave_back(self, ticket: LoadTicket, before: int | None) -> None:
        """Wait until what the load had taken is free: the next one counts on it."""
        try:
            await self._release.settled(before, ticket.loaded_bytes or 0)
        except OmlxdError as error:
            # An engine that is over: the memory goes with the process.
            log.warning("memory_not_sampled", code=error.code)

    def _measure(self, record: ModelRecord, before: int | None) -> None:
        """Remember what it took, which only shows where nothing else happened."""
        info, after = record.info, self._in_use()
        if info is None:
            return
        size, sure = info.weights_bytes, False
        if before is not None and after is not None and self._quiet():
            size, sure = min(max(size, after - before), int(size * LARGEST_SURPLUS)), True
        self._measured(record.model, size, sure)

    def _in_use(self) -> int | None:
        """Bytes of the process without the allocator's pool, which is of no model."""
        usage, sample = self._ports.usage(), self._ports.engine.latest_sample
        return usage if usage is None or sample is None else usage - sample.buffer_cache

    def _cancelled(self, record: ModelRecord, error: ModelLoadCancelled) -> OmlxdError | None:
        stopped = record.load_aborted
        if stopped is not None:
            record.stopped_at = self._ports.clock()
            if record.preload:
                # Nobody need ask for it again, so only a pause keeps it from an eternal reload.
                self.fail(record, stopped)
                return None
        if isinstance(record.state, Loading) and record.state.cancelling:
            loaded = None if record.ticket is None else record.ticket.loaded_bytes
            by_guard = stopped is not None
            log.info(
                "model_load_cancelled", model=record.id, loaded_bytes=loaded, by_guard=by_guard
            )
            record.happen(GivenUp())
            return None
        return self.fail(record, error)

    def end_eviction(self, record: ModelRecord, freed: int) -> None:
        """Report what came free, if the model was to make room for a load."""
        eviction, record.eviction = record.eviction, None
        if eviction is not None:
            self._ports.on_eviction(replace(eviction, freed=freed))

    def fail(self, record: ModelRecord, error: OmlxdError) -> OmlxdError:
        """From Queued or Loading to Failed; gives the error as its clients get it."""
        record.failures += 1
        cool_down = pause_after(record.failures, self._options)
        # A copy: the traceback's frames would keep alive what was loaded.
        error = without_paths(error, record.model)
        record.happen(LoadFailed(error, self._ports.clock() + cool_down, record.failures))
        log.warning(
            "model_load_failed",
            model=record.id,
            code=error.code,
            reason=error.message,
            retry_in=cool_down,
            attempts=record.failures,
        )
        return error

    async def _await_unload(self, record: ModelRecord) -> None:
        before = self._release.beyond_allocator()
        freed = 0
        try:
            freed = await self._ports.engine.unload(record.id)
            freed = await self._release.settled(before, freed)
        except OmlxdError as error:
            # Only an engine that is over refuses, and then the memory goes with the process.
            log.warning("model_unload_refused", model=record.id, code=error.code)
        log.info("model_unloaded", model=record.id, freed_bytes=freed)
        record.happen(Unloaded())
        self.end_eviction(record, freed)
        for waiting in record.unloaded:
            if not waiting.done():
                waiting.set_result(freed)
        record.unloaded.clear()
        self._done(record, None)
        self._ports.wake()
