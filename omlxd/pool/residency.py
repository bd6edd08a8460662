"""Keeps models and memory in step: after every change it does whatever can be done next."""

import itertools
import math
from collections.abc import Callable

import structlog

from omlxd.errors import ModelUnloading, OmlxdError
from omlxd.pool.admit import Admission, Admit, MakeRoom, Refuse, Wait
from omlxd.pool.catalog import CatalogModel
from omlxd.pool.device import Device
from omlxd.pool.entry import (
    Absent,
    CancelAsked,
    DrainAsked,
    Draining,
    DrainReason,
    Failed,
    GivenUp,
    Kept,
    Loading,
    Postponed,
    Queued,
    Ready,
    Unloading,
    Wanted,
)
from omlxd.pool.failures import told_again, waited_too_long
from omlxd.pool.line import in_line, next_due, patience_ends
from omlxd.pool.options import ModelSettings, PoolOptions
from omlxd.pool.protocol import PoolPorts
from omlxd.pool.record import Lease, ModelRecord, Waiter
from omlxd.pool.timing import Alarm, AwakeClock, loop_call_later

log = structlog.get_logger(__name__)


class Residency:
    """Owns the records. Nothing here awaits: each method leaves everything consistent."""

    def __init__(self, options: PoolOptions, ports: PoolPorts, admission: Admission) -> None:
        self.records: dict[str, ModelRecord] = {}
        self.awake = AwakeClock(ports.clock)
        self.device = Device(options, ports, self._device_done)
        self._options = options
        self._ports = ports
        self._admission = admission
        self._numbers = itertools.count()
        self._alarm = Alarm(ports.clock, ports.call_later or loop_call_later, self.advance)
        self._patience = math.inf
        """When the head of the line may push out models in use."""

    def add(self, model: CatalogModel, settings: ModelSettings) -> None:
        """A model that was not known; a pinned one is loaded when there is room."""
        self.records[model.id] = ModelRecord(
            model=model,
            settings=settings,
            last_used=self._ports.clock(),
            idle_since=self.awake(),
            preload=bool(settings.pinned),
        )

    # Requests

    def enqueue(self, record: ModelRecord, waiter: Waiter) -> None:
        record.waiting.append(waiter)
        self.advance()

    def next_number(self) -> int:
        return next(self._numbers)

    def leave(self, record: ModelRecord, waiter: Waiter) -> None:
        """The request is gone, whether it waits or was granted its lease just now."""
        granted = waiter.granted
        if granted.done() and not granted.cancelled() and granted.exception() is None:
            self.release(record, granted.result())
            return
        granted.cancel()
        if waiter in record.waiting:
            record.waiting.remove(waiter)
        self.advance()

    def release(self, record: ModelRecord, lease: Lease) -> None:
        """Any number of times; the first counts."""
        lease.end()
        if lease in record.leases:
            record.leases.discard(lease)
            self._used(record)
            self.advance()

    def fail_waiting(self, record: ModelRecord, make_error: Callable[[], OmlxdError]) -> None:
        """Each gets an error of its own: an exception raised twice joins its tracebacks."""
        while record.waiting:
            waiter = record.waiting.popleft()
            if not waiter.granted.done():
                waiter.granted.set_exception(make_error())

    # Memory

    def drain(self, record: ModelRecord, reason: DrainReason, deadline: float) -> None:
        """Ask a resident model to leave; at once when nobody uses it."""
        if isinstance(record.state, Ready | Draining):
            record.happen(DrainAsked(reason, deadline))
            log.info("model_draining", model=record.id, reason=reason.name.lower())
            self._drained(record)

    def cancel_load(self, record: ModelRecord) -> None:
        if isinstance(record.state, Loading) and not record.state.cancelling:
            record.happen(CancelAsked())
            if record.ticket is not None:
                record.ticket.cancel()

    # The one place that moves things on

    def advance(self) -> None:
        """Do what can be done now, and set the alarm for what becomes possible by time alone."""
        now = self._ports.clock()
        for record in list(self.records.values()):
            self._expire(record, now)
            self._settle(record, now)
        self._patience = math.inf
        self._serve_line(now)
        due = next_due(self.records.values())
        soonest = min(math.inf if due is None else due, self._patience)
        self._alarm.set(None if soonest == math.inf else soonest)

    def _expire(self, record: ModelRecord, now: float) -> None:
        """Deadlines are for waiting in line; a load that has begun is waited for."""
        if isinstance(record.state, Loading):
            return
        for waiter in [w for w in record.waiting if w.deadline <= now]:
            record.waiting.remove(waiter)
            if not waiter.granted.done():
                waiter.granted.set_exception(waited_too_long(record, now - waiter.since))

    def _settle(self, record: ModelRecord, now: float) -> None:
        match record.state:
            case Absent() | Failed():
                self._rest(record, now)
            case Queued():
                self._settle_queued(record, now)
            case Loading():
                if not record.wanted:
                    self.cancel_load(record)
            case Ready():
                self._settle_ready(record, now)
            case Draining(deadline=deadline):
                if record.leases and deadline <= now:
                    self._end_leases(record)
                self._drained(record)
            case Unloading():
                pass

    def _settle_queued(self, record: ModelRecord, now: float) -> None:
        self._follow_disk(record)
        if not record.wanted:
            record.happen(GivenUp())
            self._rest(record, now)

    def _settle_ready(self, record: ModelRecord, now: float) -> None:
        if record.gone or record.replacement is not None:
            self.drain(record, DrainReason.VANISHED, now + self._options.drain_deadline)
        else:
            self._grant(record)

    def _rest(self, record: ModelRecord, now: float) -> None:
        self._follow_disk(record)
        if record.gone:
            del self.records[record.id]
            return
        cooling = isinstance(record.state, Failed) and now < record.state.retry_at
        if record.wanted and not cooling:
            record.happen(Wanted(now))

    def _follow_disk(self, record: ModelRecord) -> None:
        """Nothing of the model is in memory: the moment to take the new one."""
        if record.replacement is None:
            return
        record.model, record.replacement = record.replacement, None
        record.failures = 0
        if isinstance(record.state, Failed):
            record.happen(GivenUp())

    def _grant(self, record: ModelRecord) -> None:
        facts = record.facts
        while facts is not None and record.waiting and record.has_room:
            waiter = record.waiting.popleft()
            if waiter.granted.done():
                continue
            lease = Lease(record.id, waiter.request_id, facts, self._ports.engine.submit)
            record.leases.add(lease)
            self._used(record)
            waiter.granted.set_result(lease)

    def _used(self, record: ModelRecord) -> None:
        record.last_used = self._ports.clock()
        record.idle_since = self.awake()

    def _end_leases(self, record: ModelRecord) -> None:
        """Its deadline has passed: requests end at the next step, before the unload itself."""
        name = record.id
        self._ports.engine.abort(name, ModelUnloading(f"Model '{name}' was unloaded."))
        log.warning("leases_ended", model=name, leases=len(record.leases))
        for lease in record.leases:
            lease.end()
        record.leases.clear()

    def _drained(self, record: ModelRecord) -> None:
        if isinstance(record.state, Draining) and not record.leases:
            self.device.unload(record)

    # The line for memory

    def _serve_line(self, now: float) -> None:
        line = in_line(self.records.values())
        if not line:
            self._keep_what_need_not_leave()
            return
        for record in line:
            if not self._serve(record, now):
                # Strictly in order: who comes later never overtakes.
                break

    def _serve(self, record: ModelRecord, now: float) -> bool:
        """True when ``record`` has left the line."""
        verdict = self._admission(record, tuple(self.records.values()), self.device.promised())
        match verdict:
            case Admit(reserve=reserve):
                self.device.load(record, reserve, now)
                return True
            case Refuse(make_error=make_error):
                record.preload = False
                self.fail_waiting(record, make_error)
                record.happen(GivenUp())
                return True
            case Wait(reason=reason):
                record.happen(Postponed(reason))
                return False
            case MakeRoom(victims=victims):
                self._make_room(record, victims, now)
                return False

    def _make_room(self, record: ModelRecord, victims: tuple[str, ...], now: float) -> None:
        in_use = []
        for victim in (self.records[name] for name in victims):
            if not victim.busy:
                self.drain(victim, DrainReason.MAKE_ROOM, math.inf)
                continue
            in_use.append(victim.id)
            if isinstance(victim.state, Ready):
                ends = patience_ends(record, victim, self._options.drain_after)
                if ends <= now:
                    # Never cut for another's sake: the one that waits has a deadline.
                    self.drain(victim, DrainReason.MAKE_ROOM, math.inf)
                else:
                    self._patience = min(self._patience, ends)
        waits_for = ", ".join(in_use) or "memory to come free"
        record.happen(Postponed(f"waits for {waits_for}" + (", in use" if in_use else "")))

    def _keep_what_need_not_leave(self) -> None:
        for record in self.records.values():
            state = record.state
            if isinstance(state, Draining) and state.reason is DrainReason.MAKE_ROOM:
                record.happen(Kept())
                self._grant(record)

    def _device_done(self, record: ModelRecord, error: OmlxdError | None) -> None:
        """A load or an unload ended; ``error`` is for those who waited for the load."""
        if error is not None:
            self.fail_waiting(record, lambda: self._failure(record, error))
        self.advance()

    def _failure(self, record: ModelRecord, error: OmlxdError) -> OmlxdError:
        state, now = record.state, self._ports.clock()
        return told_again(error, state.retry_at - now if isinstance(state, Failed) else None)
