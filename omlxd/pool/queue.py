"""The queue of models that wait for memory, and the models that are asked to make room for them."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import structlog

from omlxd.policy.admission import Admit, EvictFirst, LoadPlan, RefusalKind, Refuse, Wait
from omlxd.policy.eviction import Eviction
from omlxd.pool import states
from omlxd.pool.admission import MemoryAdmission
from omlxd.pool.failures import refused
from omlxd.pool.loader import Loader
from omlxd.pool.options import PoolOptions
from omlxd.pool.ports import PoolPorts
from omlxd.pool.record import ModelRecord, Waiter
from omlxd.pool.states import Draining, DrainReason, Queued, Ready
from omlxd.pool.tokenizers import PreloadTokenizers

log = structlog.get_logger(__name__)

RETRY_AFTER = 1.0
"""Seconds until a waiting load is decided again even if nothing in the pool has changed."""


def in_queue(records: Iterable[ModelRecord]) -> list[ModelRecord]:
    """Models that wait for memory, in the order in which their oldest requests came.

    Models to preload, which no request waits for, come last.
    """
    queued = [record for record in records if isinstance(record.state, Queued)]
    return sorted(queued, key=_arrival)


def _arrival(record: ModelRecord) -> float:
    return record.waiting[0].number if record.waiting else math.inf


def must_leave_at(waiting: ModelRecord, resident: ModelRecord, drain_after: float) -> float:
    """When ``resident``, a model in use, must make room for ``waiting``.

    A model stays in memory for at least ``drain_after`` seconds. Otherwise two busy models would
    evict each other without end.
    """
    since = waiting.waiting[0].since if waiting.waiting else math.inf
    return max(since, resident.ready_at) + drain_after


@dataclass(frozen=True, slots=True)
class MakingRoom:
    """The models to ask to leave now, when to ask again, and the reason to wait."""

    drain: tuple[ModelRecord, ...]
    again_at: float
    reason: str


def making_room(
    head: ModelRecord, victims: Sequence[ModelRecord], drain_after: float, now: float
) -> MakingRoom:
    """Which of ``victims`` leave now for ``head``, the first in the queue.

    Idle victims stay while other victims are in use, because alone they free too little.
    """
    in_use = [victim for victim in victims if victim.busy]
    if not in_use:
        idle = tuple(victim for victim in victims if isinstance(victim.state, Ready))
        return MakingRoom(idle, math.inf, "waits for memory to come free")
    ends = {
        victim: must_leave_at(head, victim, drain_after)
        for victim in in_use
        if isinstance(victim.state, Ready) and _arrival(victim) > _arrival(head)
    }
    return MakingRoom(
        drain=tuple(victim for victim, end in ends.items() if end <= now),
        again_at=min((end for end in ends.values() if end > now), default=math.inf),
        reason=f"waits for {', '.join(victim.id for victim in in_use)}, in use",
    )


def _may_stay(record: ModelRecord, first: Collection[Waiter]) -> bool:
    """Whether a model that leaves to free memory may stay after all.

    It may if it was pinned in the meantime, or if the request that needs the room is not in
    ``first``, the first request of each queued model. A model that a client unloads never stays.
    """
    if not isinstance(record.state, Draining) or record.unloaded:
        return False
    match record.state.reason:
        case DrainReason.MAKE_ROOM:
            return record.pinned or record.makes_room_for not in first
        case DrainReason.PRESSURE:
            return record.pinned
        case _:
            return False


class MemoryQueue:
    """Decides which model gets memory next and which ones leave for it. Nothing here awaits."""

    def __init__(
        self,
        records: Mapping[str, ModelRecord],
        options: PoolOptions,
        ports: PoolPorts,
        admission: MemoryAdmission,
        loader: Loader,
        tokenizers: PreloadTokenizers,
    ) -> None:
        self._records = records
        self._options = options
        self._ports = ports
        self._admission = admission
        self._loader = loader
        self._tokenizers = tokenizers
        self.serve_again_at = math.inf
        """When the head of the queue may evict models in use, or is decided again."""

    def drain(self, record: ModelRecord, reason: DrainReason, deadline: float) -> None:
        """Ask a resident model to leave; it leaves at once if no request uses it."""
        if isinstance(record.state, Ready | Draining):
            record.state = states.drain(record.state, reason, deadline)
            log.info("model_draining", model=record.id, reason=reason.name.lower())
            self.unload_if_drained(record)

    def unload_if_drained(self, record: ModelRecord) -> None:
        if not isinstance(record.state, Draining) or record.leases:
            return
        if record.state.reason is DrainReason.MAKE_ROOM:
            for head in in_queue(self._records.values())[:1]:
                head.evicted_for = True
        self._loader.unload(record)

    def keep_what_may_stay(self) -> list[ModelRecord]:
        """Make models ready again that need not leave any more; returns them."""
        first = {record.waiting[0] for record in self._in_order() if record.waiting}
        kept = [record for record in self._records.values() if _may_stay(record, first)]
        for record in kept:
            record.state = states.keep(record.state)
            self._loader.end_eviction(record, freed=0)
            record.preload = False
        return kept

    def serve(self, now: float) -> None:
        """Start or refuse loads, in order, until one must wait.

        No model overtakes an earlier one. But one that can never fit is refused without waiting
        for its turn.
        """
        self.serve_again_at = math.inf
        queue = self._in_order()
        served = 0
        while served < len(queue) and self._serve(queue[served], now):
            served += 1
        for record in queue[served + 1 :]:
            plan = self._plan(record)
            if isinstance(plan, Refuse) and plan.kind is RefusalKind.MODEL_TOO_LARGE:
                self._refuse(record, plan, now)
            else:
                record.state = states.postpone(record.state, f"waits behind {queue[served].id}")

    def needs_more(self, record: ModelRecord, size: int) -> None:
        """Its load needs ``size`` bytes, more than it was promised.

        It is promised that much if there is room; otherwise it goes back into the queue.
        """
        plan = self._plan(record)
        if isinstance(plan, Admit):
            record.reserve(plan.reserve)
        else:
            self._loader.cancel(record)

    def _in_order(self) -> list[ModelRecord]:
        return in_queue(self._records.values())

    def _plan(self, record: ModelRecord) -> LoadPlan:
        promised = self._loader.promised(but=record)
        return self._admission(record, tuple(self._records.values()), promised)

    def _serve(self, record: ModelRecord, now: float) -> bool:
        """True when ``record`` has left the queue."""
        if not record.waiting and not self._tokenizers.is_read(record):
            record.state = states.postpone(record.state, "its tokenizer is being read")
            return False
        plan = self._plan(record)
        match plan:
            case Admit():
                record.monitor_note = _monitor_note(record, plan)
                self._loader.load(record, plan.reserve, now)
                return True
            case Refuse():
                return self._refuse(record, plan, now)
            case EvictFirst(model_ids=victims):
                self._make_room(record, victims, now)
            case Wait(reason=reason, drain=victims):
                record.state = states.postpone(record.state, reason)
                self.serve_again_at = now + RETRY_AFTER
                if victims:
                    self._make_room(record, victims, now)
            case _:
                assert_never(plan)
        return False

    def _refuse(self, record: ModelRecord, plan: Refuse, now: float) -> bool:
        """True when ``record`` has left the queue."""
        if plan.kind is RefusalKind.INSUFFICIENT_MEMORY and record.evicted_for:
            # Room was made for it a moment ago, and the readings may not show it yet.
            record.state = states.postpone(record.state, "waits for memory to come free")
            self.serve_again_at = now + RETRY_AFTER
            return False
        error = refused(record.id, plan)
        record.fail_waiting(error)
        if record.preload:
            self._loader.note_failure(record, error)
        else:
            record.state = states.reset(record.state)
        return True

    def _make_room(self, record: ModelRecord, victims: tuple[str, ...], now: float) -> None:
        present = [self._records[name] for name in victims]
        room = making_room(record, present, self._options.drain_after, now)
        record.state = states.postpone(record.state, room.reason)
        self.serve_again_at = min(self.serve_again_at, room.again_at)
        for victim in room.drain:
            victim.makes_room_for = record.waiting[0] if record.waiting else None
            view = victim.view(self._ports.engine)
            victim.eviction = Eviction(
                for_model=record.id, model_id=victim.id, bytes=0 if view is None else view.bytes
            )
            self._ports.on_eviction(victim.eviction)
            # No deadline: its requests are not cut off. The waiting request has a deadline.
            self.drain(victim, DrainReason.MAKE_ROOM, math.inf)


def _monitor_note(record: ModelRecord, plan: Admit) -> str | None:
    """What an enforcing guard would have done about the load; None if it would admit it too."""
    match plan.instead_of:
        case None:
            return None
        case Refuse() as refuse:
            error = refused(record.id, refuse)
            log.warning("load_would_be_refused", model=record.id, code=error.code, **error.details)
            return f"a guard that acts would have refused it: {error.message}"
        case EvictFirst(model_ids=victims):
            log.warning("load_would_evict", model=record.id, victims=list(victims))
            return f"a guard that acts would have unloaded {', '.join(victims)} first"
        case Wait(reason=reason, drain=drain):
            log.warning("load_would_wait", model=record.id, reason=reason, drain=list(drain))
            return f"a guard that acts would have let it wait: {reason}"
        case _:
            assert_never(plan.instead_of)
