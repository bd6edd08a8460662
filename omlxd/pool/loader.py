"""Loads and unloads models on the device thread, and waits until readings show the change."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from dataclasses import replace
from typing import Any

import structlog

from omlxd.engine.handle import LoadTicket
from omlxd.errors import ModelLoadCancelled, ModelLoadFailed, OmlxdError
from omlxd.pool import states
from omlxd.pool.failures import pause_after, without_paths
from omlxd.pool.measured_sizes import MeasuredSizes
from omlxd.pool.options import PoolOptions
from omlxd.pool.ports import PoolPorts
from omlxd.pool.record import ModelRecord
from omlxd.pool.states import Loading, Unloading
from omlxd.timing import pause
from omlxd.units import MiB

log = structlog.get_logger(__name__)

LARGEST_SURPLUS = 1.5
"""Times the weights; if the process grew more, the model is not the only cause."""
FIRST_PREFILL_LIMIT = 5.0
"""Seconds for which a loaded model in use keeps the room promised to its first prefill."""
POLL_INTERVAL = 0.1
"""Seconds between two readings of memory that is coming free."""
FREED_SHARE = 0.95
"""Share of the freed bytes that readings must show before the next load."""
UPS_AND_DOWNS = 32 * MiB
"""Bytes by which the process grows and shrinks independently of its models."""

Ended = Callable[[ModelRecord, OmlxdError | None], None]
"""Takes the error for requests that waited for a load; None after an unload or a good load."""


class Loader:
    """Changes the states of ``records`` when the device thread has done its part."""

    def __init__(
        self,
        records: Mapping[str, ModelRecord],
        options: PoolOptions,
        ports: PoolPorts,
        sizes: MeasuredSizes,
        *,
        ended: Ended,
        needs_more: Callable[[ModelRecord, int], None],
    ) -> None:
        """``ended`` is called after each load and unload; ``needs_more`` when a load needs more
        than it was promised."""
        self._records = records
        self._options = options
        self._ports = ports
        self._sizes = sizes
        self._ended = ended
        self._needs_more = needs_more
        self._tasks: set[asyncio.Task[None]] = set()

    def load(self, record: ModelRecord, reserve: int, now: float) -> None:
        """From Queued to Loading, with ``reserve`` bytes; ends in Ready, Failed or Absent."""
        record.state = states.start_load(record.state, now)
        record.load_aborted = None
        # The admission counted the allocator's buffer cache as free.
        self._ports.engine.reclaim(when_idle=False)
        ticket = self._ports.engine.load(record.id, record.model.path)
        record.ticket = ticket
        before = self._in_use() if self._nothing_else_runs() else None
        record.reserve(reserve)
        self._spawn(self._await_load(record, ticket, before), f"load {record.id}")
        self._ports.wake()

    def cancel(self, record: ModelRecord) -> None:
        """End its load at the next piece, if it is being loaded."""
        if isinstance(record.state, Loading) and not record.state.cancelling:
            record.state = states.cancel_load(record.state)
            if record.ticket is not None:
                record.ticket.cancel()

    def unload(self, record: ModelRecord) -> None:
        """From Draining, without leases, to Unloading; ends in Absent."""
        record.release()
        record.state = states.start_unload(record.state)
        self._spawn(self._await_unload(record), f"unload {record.id}")

    async def join(self) -> None:
        """Wait for every load and unload in flight."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def promised(self, but: ModelRecord | None = None) -> int:
        """Bytes that loads and first prefills of all models except ``but`` may still allocate."""
        for record in self._records.values():
            self.note_progress(record)
        return sum(r.unallocated for r in self._records.values() if r is not but)

    def note_progress(self, record: ModelRecord) -> None:
        """Update the record from its load ticket and the engine."""
        ticket = record.ticket
        if ticket is None or not isinstance(record.state, Loading):
            if record.info is not None and not self._awaits_prefill(record):
                record.release()
            return
        if ticket.loaded_bytes is not None and ticket.total_bytes is not None:
            loaded = ticket.loaded_bytes
            record.state = states.progress(record.state, loaded, ticket.total_bytes)
            record.allocated = loaded

    def fail(self, record: ModelRecord, error: OmlxdError) -> OmlxdError:
        """From Queued or Loading to Failed; returns the error for its clients."""
        # A copy without the traceback: its frames would keep the loaded weights alive.
        error = without_paths(error, record.model)
        retry_in = self.note_failure(record, error)
        log.warning(
            "model_load_failed",
            model=record.id,
            code=error.code,
            reason=error.message,
            retry_in=retry_in,
            attempts=record.failures,
        )
        return error

    def note_failure(self, record: ModelRecord, error: OmlxdError) -> float:
        """Like ``fail``, without a log entry; returns the seconds until the next try."""
        record.failures += 1
        retry_in = pause_after(record.failures, self._options)
        retry_at = self._ports.clock() + retry_in
        record.state = states.fail_load(record.state, error, retry_at, record.failures)
        return retry_in

    def end_eviction(self, record: ModelRecord, freed: int) -> None:
        """Report the freed bytes, if the model was asked to make room for a load."""
        eviction, record.eviction = record.eviction, None
        if eviction is not None:
            self._ports.on_eviction(replace(eviction, freed=freed))

    def _awaits_prefill(self, record: ModelRecord) -> bool:
        late = self._ports.clock() >= record.ready_at + FIRST_PREFILL_LIMIT
        return record.busy and not late and self._ports.engine.view(record.id).last_step_at is None

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        # In a context of its own, because many requests may wait for it.
        task = asyncio.create_task(work, name=name, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("pool_task_died", task=task.get_name(), exc_info=error)
            self._ports.died(error)

    async def _await_load(
        self, record: ModelRecord, ticket: LoadTicket, before: int | None
    ) -> None:
        error: OmlxdError | None = None
        beyond = self._beyond_allocator()
        sizing = asyncio.create_task(self._await_size(record, ticket), name=f"size {record.id}")
        sizing.add_done_callback(self._task_ended)
        try:
            info = await ticket.result()
        except ModelLoadCancelled as cancelled:
            await self._load_freed(ticket, beyond)
            error = self._cancelled(record, cancelled)
        except OmlxdError as failure:
            await self._load_freed(ticket, beyond)
            error = self.fail(record, failure)
        except Exception as fault:
            # The boundary of this task: a fault in one load must not end the pool.
            log.exception("model_load_fault", model=record.id)
            error = self.fail(record, ModelLoadFailed(f"Loading failed: {fault!r}."))
        else:
            record.state = states.finish_load(record.state, info)
            record.allocated = info.weights_bytes
            record.ready_at = record.last_used = record.idle_since = self._ports.clock()
            record.failures = 0
            record.preload = False
            self._measure(record, info.weights_bytes, before)
            log.info("model_ready", model=record.id, weights_bytes=info.weights_bytes)
        finally:
            sizing.cancel()
            record.ticket = None
            if record.info is None:
                record.release()
        self._ended(record, error)
        self._ports.wake()

    async def _await_size(self, record: ModelRecord, ticket: LoadTicket) -> None:
        total = await ticket.size()
        self.note_progress(record)
        if total > record.promised:
            promised = record.promised
            log.warning("model_outgrows", model=record.id, promised=promised, needed=total)
            self._sizes.note(record.model, total)
            self._needs_more(record, total)

    def _cancelled(self, record: ModelRecord, error: ModelLoadCancelled) -> OmlxdError | None:
        stopped = record.load_aborted
        if stopped is not None:
            record.stopped_at = self._ports.clock()
            if record.preload:
                # A preload needs no request to start again: only a pause prevents endless loads.
                self.fail(record, stopped)
                return None
        if isinstance(record.state, Loading) and record.state.cancelling:
            loaded = None if record.ticket is None else record.ticket.loaded_bytes
            by_guard = stopped is not None
            log.info(
                "model_load_cancelled", model=record.id, loaded_bytes=loaded, by_guard=by_guard
            )
            record.state = states.reset(record.state)
            return None
        return self.fail(record, error)

    async def _await_unload(self, record: ModelRecord) -> None:
        before = self._beyond_allocator()
        freed = 0
        try:
            freed = await self._ports.engine.unload(record.id)
            freed = await self._freed(before, freed)
        except OmlxdError as error:
            # Only an ended engine refuses this, and the end of the process frees its memory.
            log.warning("model_unload_refused", model=record.id, code=error.code)
        log.info("model_unloaded", model=record.id, freed_bytes=freed)
        record.state = states.finish_unload(record.state)
        self.end_eviction(record, freed)
        for waiting in record.unloaded:
            if not waiting.done():
                waiting.set_result(freed)
        record.unloaded.clear()
        self._ended(record, None)
        self._ports.wake()

    # Memory

    def _nothing_else_runs(self) -> bool:
        """At most one model is being loaded or unloaded, and no request runs."""
        records = self._records.values()
        moving = [r for r in records if isinstance(r.state, Loading | Unloading)]
        return len(moving) <= 1 and not any(r.leases for r in records)

    def _measure(self, record: ModelRecord, weights: int, before: int | None) -> None:
        """Remember what the model took. This can be measured only if nothing else happened."""
        size, sure, after = weights, False, self._in_use()
        if before is not None and after is not None and self._nothing_else_runs():
            size, sure = min(max(size, after - before), int(size * LARGEST_SURPLUS)), True
        self._sizes.note(record.model, size, sure=sure)

    def _in_use(self) -> int | None:
        """Bytes of the process without the allocator's buffer cache, which belongs to no model."""
        usage, sample = self._ports.usage(), self._ports.engine.latest_sample
        return usage if usage is None or sample is None else usage - sample.buffer_cache

    def _beyond_allocator(self) -> int | None:
        """Bytes of the process outside the allocator; other models do not change them."""
        usage, sample = self._ports.usage(), self._ports.engine.latest_sample
        if usage is None or sample is None:
            return None
        return usage - sample.active - sample.buffer_cache

    async def _load_freed(self, ticket: LoadTicket, before: int | None) -> None:
        """Wait until the memory of the load is free, because the next load relies on it."""
        try:
            await self._freed(before, ticket.loaded_bytes or 0)
        except OmlxdError as error:
            # The engine has ended, and the end of the process frees its memory.
            log.warning("memory_not_sampled", code=error.code)

    async def _freed(self, before: int | None, freed: int) -> int:
        """Wait until readings show the freed bytes, or until the limit; returns what came free.

        ``before``: ``_beyond_allocator`` while the allocator held the bytes. Raises the error of an
        engine that has ended.
        """
        if self._ports.release_memory is not None:
            await asyncio.to_thread(self._ports.release_memory)
        await self._ports.engine.sample()
        until = self._ports.clock() + self._options.settle_limit
        tolerated = max(int((1 - FREED_SHARE) * freed), UPS_AND_DOWNS)
        while before is not None and (now := self._beyond_allocator()) is not None:
            kept = max(0, now - before)
            if kept <= tolerated:
                return max(0, freed - kept)
            if self._ports.clock() >= until:
                log.warning("freed_memory_not_seen", expected=freed, seen=freed - kept)
                return max(0, freed - kept)
            await pause(self._ports.call_later, POLL_INTERVAL)
        return freed
