"""Carries loads and unloads to the device thread, and waits for what they promise."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from omlxd.errors import ModelLoadCancelled, ModelLoadFailed, OmlxdError
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
from omlxd.pool.failures import pause_after, told_again
from omlxd.pool.ledger import Ledger
from omlxd.pool.options import PoolOptions
from omlxd.pool.protocol import LoadTicket, PoolPorts
from omlxd.pool.record import ModelRecord
from omlxd.pool.timing import loop_call_later

log = structlog.get_logger(__name__)

SETTLE_STEP = 0.1
"""Seconds between two looks at memory that is coming free."""
SETTLED = 0.95
"""Share of the freed bytes that must show before the next load."""

Done = Callable[[ModelRecord, OmlxdError | None], None]


class Device:
    """Changes the records' states when the device thread has done its part."""

    def __init__(self, options: PoolOptions, ports: PoolPorts, done: Done) -> None:
        self._options = options
        self._ports = ports
        self._call_later = ports.call_later or loop_call_later
        self._done = done
        self._ledger = Ledger()
        self._tasks: set[asyncio.Task[None]] = set()

    def promised(self) -> int:
        """Bytes that loads may still allocate."""
        return self._ledger.outstanding()

    def load(self, record: ModelRecord, reserve: int, now: float) -> None:
        """From Queued to Loading; ends in Ready, Failed or Absent."""
        record.happen(Started(now))
        ticket = self._ports.engine.load(record.id, record.model.path)
        record.ticket = ticket
        self._ledger.reserve(record.id, reserve)
        self._spawn(self._await_load(record, ticket), f"load {record.id}")
        self._ports.wake()

    def unload(self, record: ModelRecord) -> None:
        """From Draining, without leases, to Unloading; ends in Absent."""
        record.happen(UnloadBegun())
        self._spawn(self._await_unload(record), f"unload {record.id}")

    def note_progress(self, record: ModelRecord) -> None:
        """Bring state and ledger up to what the ticket says."""
        ticket = record.ticket
        if ticket is None or not isinstance(record.state, Loading):
            return
        if ticket.loaded_bytes is not None and ticket.total_bytes is not None:
            record.happen(Progressed(ticket.loaded_bytes, ticket.total_bytes))
            self._ledger.allocated(record.id, ticket.loaded_bytes)

    async def join(self) -> None:
        """Wait for every load and unload in flight."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_load(self, record: ModelRecord, ticket: LoadTicket) -> None:
        error: OmlxdError | None = None
        try:
            facts = await ticket.result()
        except ModelLoadCancelled as cancelled:
            error = self._cancelled(record, cancelled)
        except OmlxdError as failure:
            error = self._failed(record, failure)
        except Exception as fault:
            # The boundary of this task: a fault in one load must not end the pool.
            log.exception("model_load_fault", model=record.id)
            error = self._failed(record, ModelLoadFailed(f"Loading failed: {fault!r}."))
        else:
            record.happen(Loaded(facts))
            record.ready_at = self._ports.clock()
            record.failures = 0
            record.preload = False
            log.info("model_ready", model=record.id, weights_bytes=facts.weights_bytes)
        finally:
            record.ticket = None
            self._ledger.release(record.id)
        self._done(record, error)
        self._ports.wake()

    def _cancelled(self, record: ModelRecord, error: ModelLoadCancelled) -> OmlxdError | None:
        if isinstance(record.state, Loading) and record.state.cancelling:
            log.info("model_load_cancelled", model=record.id)
            record.happen(GivenUp())
            return None
        return self._failed(record, error)

    def _failed(self, record: ModelRecord, error: OmlxdError) -> OmlxdError:
        record.failures += 1
        pause = pause_after(record.failures, self._options)
        # A copy: the traceback's frames would keep alive what was loaded.
        error = told_again(error, retry_after=pause)
        record.happen(LoadFailed(error, self._ports.clock() + pause, record.failures))
        log.warning(
            "model_load_failed",
            model=record.id,
            code=error.code,
            reason=error.message,
            retry_in=pause,
            attempts=record.failures,
        )
        return error

    async def _await_unload(self, record: ModelRecord) -> None:
        before = self._ports.usage()
        freed = 0
        try:
            freed = await self._ports.engine.unload(record.id)
        except OmlxdError as error:
            # Only an engine that is over refuses, and then the memory goes with the process.
            log.warning("model_unload_refused", model=record.id, code=error.code)
        else:
            freed = await self._settled(before, freed)
        log.info("model_unloaded", model=record.id, freed_bytes=freed)
        record.happen(Unloaded())
        for waiting in record.unloaded:
            if not waiting.done():
                waiting.set_result(freed)
        record.unloaded.clear()
        self._done(record, None)
        self._ports.wake()

    async def _settled(self, before: int | None, freed: int) -> int:
        """Bytes that really came free: waits until they show, or the limit has passed."""
        if self._ports.release_memory is not None:
            await asyncio.to_thread(self._ports.release_memory)
        usage = self._ports.usage()
        if before is None or usage is None:
            return freed
        until = self._ports.clock() + self._options.settle_limit
        while usage is not None and before - usage < SETTLED * freed:
            if self._ports.clock() >= until:
                log.warning("freed_memory_not_seen", expected=freed, seen=before - usage)
                break
            await self._pause(SETTLE_STEP)
            usage = self._ports.usage()
        return freed if usage is None else max(0, before - usage)

    async def _pause(self, seconds: float) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        timer = self._call_later(seconds, end)
        try:
            await over
        finally:
            timer.cancel()
