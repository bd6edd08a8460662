"""Keeps models and memory in step: after every change it does whatever can be done next."""

import itertools
import math
from collections.abc import Sequence
from typing import assert_never

import structlog

from omlxd.errors import OmlxdError
from omlxd.library.catalog import CatalogModel
from omlxd.model_settings.options import ModelSettings
from omlxd.policy.admission import Admit, EvictFirst, LoadPlan, RefusalKind, Refuse, Wait
from omlxd.policy.eviction import Eviction
from omlxd.pool.admit import MemoryAdmission
from omlxd.pool.device import Device, Measured
from omlxd.pool.entry import (
    Absent,
    CancelAsked,
    DrainAsked,
    Draining,
    DrainReason,
    Failed,
    GivenUp,
    Kept,
    LoadFailed,
    Loading,
    Postponed,
    Queued,
    Ready,
    Unloading,
    Wanted,
)
from omlxd.pool.failures import pause_after, refused, told_again
from omlxd.pool.leases import Leases
from omlxd.pool.line import in_line, making_room, need_not_leave, next_due
from omlxd.pool.options import PoolOptions
from omlxd.pool.protocol import PoolPorts
from omlxd.pool.record import ModelRecord, Waiter
from omlxd.pool.tokenizer_first import ReadTokenizer, TokenizerFirst
from omlxd.pool.view import view
from omlxd.timing import Alarm, loop_call_later

log = structlog.get_logger(__name__)

LOOK_AGAIN = 1.0
"""Seconds until a load that must wait is judged anew, though nothing of ours has changed."""


class Residency:
    """Owns the records. Nothing here awaits: each method leaves everything consistent."""

    def __init__(
        self,
        options: PoolOptions,
        ports: PoolPorts,
        admission: MemoryAdmission,
        measured: Measured,
        tokenizer: ReadTokenizer,
    ) -> None:
        self.records: dict[str, ModelRecord] = {}
        self.leases = Leases(ports, admission.shortage)
        self.device = Device(
            options,
            ports,
            self._device_done,
            quiet=self._quiet,
            measured=measured,
            outgrown=self._outgrown,
        )
        self.tokenizer_first = TokenizerFirst(tokenizer, self.device.fail, self.advance)
        self._measured = measured
        self._options = options
        self._ports = ports
        self._admission = admission
        self._numbers = itertools.count()
        self._alarm = Alarm(ports.clock, ports.call_later or loop_call_later, self.advance)
        self._patience = math.inf
        """When the head of the line may push out models in use."""

    @property
    def idle_timeout(self) -> float | None:
        """Seconds, for models without one of their own; None: never."""
        return self._options.idle_timeout

    def add(self, model: CatalogModel, settings: ModelSettings) -> None:
        """A model that was not known; a pinned one is loaded when there is room."""
        self.records[model.id] = ModelRecord(
            model=model,
            settings=settings,
            last_used=self._ports.clock(),
            idle_since=self._ports.clock(),
            preload=bool(settings.pinned),
        )

    def forget_failures(self) -> None:
        for record in self.records.values():
            record.failures = 0
            if isinstance(record.state, Failed):
                record.happen(GivenUp())
        self.advance()

    # Requests

    def next_number(self) -> int:
        return next(self._numbers)

    def enqueue(self, record: ModelRecord, waiter: Waiter) -> None:
        record.waiting.append(waiter)
        self.advance()

    def leave(self, record: ModelRecord, waiter: Waiter) -> None:
        """The request is gone, whether it waits or holds its lease."""
        self.leases.leave(record, waiter)
        self.advance()

    def fail_waiting(self, record: ModelRecord, error: OmlxdError) -> None:
        self.leases.fail_waiting(record, error)

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
            # First what can be given, then who has waited too long for it.
            self._settle(record, now)
            if self.leases.expire(record, now):
                self._settle(record, now)
        self._patience = math.inf
        kept = self._keep_what_need_not_leave()
        self._serve_line(now)
        for record in kept:
            # After the line, or later requests slip in before the next who wants it gone.
            self._settle(record, now)
        due = next_due(self.records.values(), self._options.idle_timeout)
        soonest = min(math.inf if due is None else due, self._patience)
        self._alarm.set(None if soonest == math.inf else soonest)

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
                    self.leases.end_all(record)
                self._drained(record)
            case Unloading():
                pass

    def _settle_queued(self, record: ModelRecord, now: float) -> None:
        record.follow_disk()
        if not record.wanted:
            record.happen(GivenUp())
            self._rest(record, now)

    def _settle_ready(self, record: ModelRecord, now: float) -> None:
        if record.gone or record.replacement is not None:
            record.preload = record.pinned and not record.gone
            self.drain(record, DrainReason.VANISHED, now + self._options.drain_deadline)
            return
        self.leases.grant(record)
        if record.idle_ends(self._options.idle_timeout) <= now:
            self.drain(record, DrainReason.IDLE, math.inf)

    def _rest(self, record: ModelRecord, now: float) -> None:
        record.follow_disk()
        if record.gone:
            del self.records[record.id]
            return
        # Requests are turned away on arrival while a failure is fresh; here a preload waits.
        cooling = isinstance(record.state, Failed) and now < record.state.retry_at
        if record.waiting or (record.preload and not cooling):
            record.happen(Wanted(now))
            record.evicted_for = False

    def _drained(self, record: ModelRecord) -> None:
        if not isinstance(record.state, Draining) or record.leases:
            return
        if record.state.reason is DrainReason.MAKE_ROOM:
            for head in in_line(self.records.values())[:1]:
                head.evicted_for = True
        self.device.unload(record)

    # The line for memory

    def _serve_line(self, now: float) -> None:
        line = in_line(self.records.values())
        for place, record in enumerate(line):
            if not self._serve(record, now):
                self._hold_back(line[place + 1 :], record, now)
                break

    def _hold_back(self, line: Sequence[ModelRecord], head: ModelRecord, now: float) -> None:
        """Strictly in order: who comes later never overtakes. But what can never fit need not
        wait for its turn to hear so."""
        for record in line:
            plan = self._plan(record)
            if isinstance(plan, Refuse) and plan.kind is RefusalKind.MODEL_TOO_LARGE:
                self._refuse(record, plan, now)
            else:
                record.happen(Postponed(f"waits behind {head.id}"))

    def _plan(self, record: ModelRecord) -> LoadPlan:
        records = tuple(self.records.values())
        return self._admission(record, records, self.device.promised(records, but=record.id))

    def _outgrown(self, record: ModelRecord, size: int) -> None:
        """What is free is promised to it as well; otherwise it stands in line again."""
        self._measured(record.model, size, True)
        plan = self._plan(record)
        if isinstance(plan, Admit):
            self.device.reserve(record, plan.reserve)
        else:
            self.cancel_load(record)

    def _serve(self, record: ModelRecord, now: float) -> bool:
        """True when ``record`` has left the line."""
        if not record.waiting and not self.tokenizer_first.is_read(record):
            record.happen(Postponed("its tokenizer is being read"))
            return False
        plan = self._plan(record)
        match plan:
            case Admit():
                self.device.load(record, plan, now)
                return True
            case Refuse():
                return self._refuse(record, plan, now)
            case EvictFirst(model_ids=victims):
                self._make_room(record, victims, now)
            case Wait(reason=reason, drain=victims):
                record.happen(Postponed(reason))
                self._patience = now + LOOK_AGAIN
                if victims:
                    self._make_room(record, victims, now)
            case _:
                assert_never(plan)
        return False

    def _refuse(self, record: ModelRecord, plan: Refuse, now: float) -> bool:
        if plan.kind is RefusalKind.INSUFFICIENT_MEMORY and record.evicted_for:
            # Room was made for it a moment ago, and the readings may not show it yet.
            record.happen(Postponed("waits for memory to come free"))
            self._patience = now + LOOK_AGAIN
            return False
        self.fail_waiting(record, refused(record, plan))
        if record.preload:
            record.failures += 1
            pause = pause_after(record.failures, self._options)
            record.happen(LoadFailed(refused(record, plan), now + pause, record.failures))
        else:
            record.happen(GivenUp())
        return True

    def _make_room(self, record: ModelRecord, victims: tuple[str, ...], now: float) -> None:
        present = [self.records[name] for name in victims]
        room = making_room(record, present, self._options.drain_after, now)
        record.happen(Postponed(room.reason))
        self._patience = min(self._patience, room.again_at)
        for victim in room.drain:
            # Never cut for another's sake: the one that waits has a deadline.
            victim.makes_room_for = record.waiting[0] if record.waiting else None
            self._report_eviction(record, victim)
            self.drain(victim, DrainReason.MAKE_ROOM, math.inf)

    def _report_eviction(self, record: ModelRecord, victim: ModelRecord) -> None:
        seen = view(victim, self._ports.engine.view(victim.id))
        size = 0 if seen is None else seen.bytes
        victim.eviction = Eviction(for_model=record.id, model_id=victim.id, bytes=size)
        self._ports.on_eviction(victim.eviction)

    def _keep_what_need_not_leave(self) -> list[ModelRecord]:
        """Pinned, or the request that a drain was for is served or gone."""
        kept = need_not_leave(self.records.values())
        for record in kept:
            record.happen(Kept())
            self.device.end_eviction(record, freed=0)
            record.preload = False
        return kept

    def _quiet(self) -> bool:
        """At most one model is on its way, and no request runs."""
        moving = [r for r in self.records.values() if isinstance(r.state, Loading | Unloading)]
        return len(moving) <= 1 and not any(r.leases for r in self.records.values())

    def _device_done(self, record: ModelRecord, error: OmlxdError | None) -> None:
        """A load or an unload ended; ``error`` is for those who waited for the load."""
        if error is not None:
            self.fail_waiting(record, self._failure(record, error))
        self.advance()

    def _failure(self, record: ModelRecord, error: OmlxdError) -> OmlxdError:
        state, now = record.state, self._ports.clock()
        return told_again(error, state.retry_at - now if isinstance(state, Failed) else None)
