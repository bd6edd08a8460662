"""Moves models in and out of memory: after every change it takes all steps that are possible."""

import asyncio
import itertools
import math
from collections.abc import Collection

import structlog

from omlxd.errors import ModelNotFound, ModelUnloading, OmlxdError
from omlxd.library.catalog import Catalog, CatalogModel
from omlxd.model_settings.options import ModelSettings
from omlxd.model_settings.settings import ModelSettingsStore
from omlxd.pool import states
from omlxd.pool.admission import MemoryAdmission
from omlxd.pool.failures import told_again
from omlxd.pool.loader import Loader
from omlxd.pool.measured_sizes import MeasuredSizes
from omlxd.pool.options import PoolOptions
from omlxd.pool.ports import PoolPorts
from omlxd.pool.queue import MemoryQueue
from omlxd.pool.record import ModelRecord, Waiter
from omlxd.pool.states import (
    Absent,
    Draining,
    DrainReason,
    Failed,
    Loading,
    Queued,
    Ready,
    Unloading,
)
from omlxd.pool.tokenizers import PreloadTokenizers, TokenizerCache
from omlxd.timing import Alarm

log = structlog.get_logger(__name__)


class Residency:
    """Owns the records. No method awaits, and each leaves the records consistent."""

    def __init__(
        self,
        options: PoolOptions,
        ports: PoolPorts,
        admission: MemoryAdmission,
        sizes: MeasuredSizes,
        tokenizers: TokenizerCache,
    ) -> None:
        self.records: dict[str, ModelRecord] = {}
        self.loader = Loader(
            self.records,
            options,
            ports,
            sizes,
            ended=self._ended,
            needs_more=lambda record, size: self._queue.needs_more(record, size),
        )
        self._queue = MemoryQueue(
            self.records,
            options,
            ports,
            admission,
            self.loader,
            PreloadTokenizers(tokenizers, self.loader.fail, self.advance),
        )
        self._options = options
        self._ports = ports
        self._admission = admission
        self._numbers = itertools.count()
        self._alarm = Alarm(ports.clock, ports.call_later, self.advance)

    # Requests

    def next_number(self) -> int:
        return next(self._numbers)

    def enqueue(self, record: ModelRecord, waiter: Waiter) -> None:
        record.waiting.append(waiter)
        self.advance()

    def leave(self, record: ModelRecord, waiter: Waiter) -> None:
        """The request is over, whether it waits or holds its lease."""
        record.leave(waiter, self._ports.clock())
        self.advance()

    # What clients and the guard want

    def unload(self, record: ModelRecord, deadline: float) -> asyncio.Future[int] | None:
        """Unload it for a client: now if idle, otherwise when drained, at the latest at
        ``deadline``. The future gives the freed bytes; None if it is not in memory."""
        record.preload = False
        freed: asyncio.Future[int] | None = None
        if isinstance(record.state, Queued | Loading):
            message = f"Model '{record.id}' was asked to be unloaded."
            record.fail_waiting(ModelUnloading(message, retry_after=None))
        elif isinstance(record.state, Ready | Draining | Unloading):
            freed = asyncio.get_running_loop().create_future()
            record.unloaded.append(freed)
            self._queue.drain(record, DrainReason.REQUESTED, deadline)
        self.advance()
        return freed

    def evict(self, model_id: str) -> asyncio.Future[int] | None:
        """Unload an idle model for the guard. The future gives the freed bytes; None if the model
        is in use, pinned or not in memory."""
        record = self.records.get(model_id)
        if record is None or record.busy or record.pinned:
            return None
        if not isinstance(record.state, Ready | Unloading):
            return None
        freed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        record.unloaded.append(freed)
        self._queue.drain(record, DrainReason.PRESSURE, self._ports.clock())
        return freed

    def mark_for_unload(self, model_id: str) -> tuple[bool, bool]:
        """Unload it for the guard once its requests are over. Returns whether this is new, and
        whether the unload has begun."""
        record = self.records.get(model_id)
        if record is None or record.pinned or not isinstance(record.state, Ready | Draining):
            return False, False
        new = isinstance(record.state, Ready) or record.state.deadline == math.inf
        if new:
            deadline = self._ports.clock() + self._options.drain_deadline
            self._queue.drain(record, DrainReason.PRESSURE, deadline)
        self.advance()
        return new, isinstance(record.state, Unloading)

    def abort_load(self, model_id: str, error: OmlxdError) -> bool:
        """Stop its load for the guard; False if it is not being loaded."""
        record = self.records.get(model_id)
        if record is None or not isinstance(record.state, Loading) or record.state.cancelling:
            return False
        record.load_aborted = error
        self.loader.cancel(record)
        record.fail_waiting(error)
        return True

    def stop(self, error: OmlxdError) -> None:
        """Refuse waiting requests, end running ones, unload all; ``loader.join`` waits for it."""
        now = self._ports.clock()
        for record in list(self.records.values()):
            record.preload = False
            record.fail_waiting(error)
            self._queue.drain(record, DrainReason.STOPPING, now)
        self.advance()

    # The disk and the settings

    def follow(self, catalog: Catalog, settings: ModelSettingsStore) -> None:
        """Update the records from the disk: new, replaced and deleted models."""
        for model in catalog.models.values():
            record = self.records.get(model.id)
            if record is None:
                self._add(model, settings.of(model.id))
                continue
            if record.gone:
                record.gone, record.preload = False, record.pinned
            self._follow_files(record, model)
        for record in self.records.values():
            if record.id not in catalog.models and not record.gone:
                log.info("model_vanished", model=record.id)
                record.gone, record.preload, record.replacement = True, False, None
                record.fail_waiting(ModelNotFound(record.id))
                self.loader.cancel(record)
        self.advance()

    def _add(self, model: CatalogModel, settings: ModelSettings) -> None:
        """Add a new model; a pinned one is loaded when there is room."""
        now = self._ports.clock()
        self.records[model.id] = ModelRecord(
            model, settings, last_used=now, idle_since=now, preload=bool(settings.pinned)
        )

    def _follow_files(self, record: ModelRecord, model: CatalogModel) -> None:
        if model.fingerprint == record.model.fingerprint and model.path == record.model.path:
            record.replacement = None
            record.fail_replaced()
            return
        if record.replacement is not None and record.replacement.fingerprint == model.fingerprint:
            return
        log.info("model_replaced_on_disk", model=record.id)
        record.replacement = model
        record.fail_replaced()
        self.loader.cancel(record)

    def follow_settings(
        self, model_id: str, settings: ModelSettings, changed: Collection[str]
    ) -> None:
        """Apply the ``changed`` keys of the ``settings``; the model may be broken or gone."""
        record = self.records.get(model_id)
        if record is not None:
            record.settings = settings
            if "pinned" in changed:
                away = not isinstance(record.state, Ready)
                record.preload = record.pinned and away and not record.gone
        self.advance()

    def forget_failures(self) -> None:
        for record in self.records.values():
            record.failures = 0
            if isinstance(record.state, Failed):
                record.state = states.reset(record.state)
        self.advance()

    # The one place that takes the next steps

    def advance(self) -> None:
        """Take all steps that are possible now, and set the alarm for the next timed one."""
        now = self._ports.clock()
        for record in list(self.records.values()):
            # First give leases, then fail the requests that have waited too long.
            self._settle(record, now)
            if record.expire(now, self._admission.shortage):
                self._settle(record, now)
        kept = self._queue.keep_what_may_stay()
        self._queue.serve(now)
        for record in kept:
            # Only now, so that the queue can drain it again before later requests get leases.
            self._settle(record, now)
        due = min(map(self._due, self.records.values()), default=math.inf)
        soonest = min(due, self._queue.serve_again_at)
        self._alarm.set(None if soonest == math.inf else soonest)

    def _due(self, record: ModelRecord) -> float:
        """When the next timed step of the model is due; infinite for never."""
        due = math.inf
        match record.state:
            case Loading():
                # Deadlines do not stop a load that has begun.
                return due
            case Draining(deadline=deadline):
                due = deadline
            case Failed(retry_at=retry_at) if record.wanted:
                due = retry_at
            case Ready():
                due = record.idle_ends(self._options.idle_timeout)
            case _:
                pass
        return min(due, *(waiter.deadline for waiter in record.waiting), math.inf)

    def _settle(self, record: ModelRecord, now: float) -> None:
        match record.state:
            case Absent() | Failed():
                self._settle_absent(record, now)
            case Queued():
                record.take_replacement()
                if not record.wanted:
                    record.state = states.reset(record.state)
                    self._settle_absent(record, now)
            case Loading():
                if not record.wanted:
                    self.loader.cancel(record)
            case Ready():
                self._settle_ready(record, now)
            case Draining(deadline=deadline):
                if record.leases and deadline <= now:
                    record.end_leases(self._ports.engine)
                self._queue.unload_if_drained(record)
            case Unloading():
                pass

    def _settle_ready(self, record: ModelRecord, now: float) -> None:
        if record.gone or record.replacement is not None:
            record.preload = record.pinned and not record.gone
            deadline = now + self._options.drain_deadline
            self._queue.drain(record, DrainReason.VANISHED, deadline)
            return
        record.grant(self._ports.engine.submit, now)
        if record.idle_ends(self._options.idle_timeout) <= now:
            self._queue.drain(record, DrainReason.IDLE, math.inf)

    def _settle_absent(self, record: ModelRecord, now: float) -> None:
        record.take_replacement()
        if record.gone:
            del self.records[record.id]
            return
        # Requests for a failed model are refused on arrival, so only a preload waits for the retry.
        cooling = isinstance(record.state, Failed) and now < record.state.retry_at
        if record.waiting or (record.preload and not cooling):
            record.state = states.enqueue(record.state, now)
            record.evicted_for = False

    def _ended(self, record: ModelRecord, error: OmlxdError | None) -> None:
        """A load or an unload ended; ``error`` is for the requests that waited for the load."""
        if error is not None:
            state = record.state
            retry_in = state.retry_at - self._ports.clock() if isinstance(state, Failed) else None
            record.fail_waiting(told_again(error, retry_in))
        self.advance()
