"""Who is next: the order of the models that wait for memory, and who must make room for them."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from omlxd.pool.entry import Draining, DrainReason, Failed, Loading, Queued, Ready
from omlxd.pool.record import ModelRecord, Waiter


def in_line(records: Iterable[ModelRecord]) -> list[ModelRecord]:
    """Models that wait for memory: by their longest waiting request, first come first served.

    Models to preload, which nobody waits for, come last.
    """
    queued = [record for record in records if isinstance(record.state, Queued)]
    return sorted(queued, key=_arrival)


def _arrival(record: ModelRecord) -> float:
    return record.waiting[0].number if record.waiting else math.inf


def patience_ends(waiting: ModelRecord, resident: ModelRecord, drain_after: float) -> float:
    """When ``resident``, in use, must make room for ``waiting``.

    It is always given ``drain_after`` seconds in memory itself, or two busy models would
    push each other out without end.
    """
    since = waiting.waiting[0].since if waiting.waiting else math.inf
    return max(since, resident.ready_at) + drain_after


@dataclass(frozen=True, slots=True)
class MakingRoom:
    """Models to ask to leave now, when to ask again, and what is waited for."""

    drain: tuple[ModelRecord, ...]
    again_at: float
    reason: str


def making_room(
    head: ModelRecord, victims: Sequence[ModelRecord], drain_after: float, now: float
) -> MakingRoom:
    """Which of ``victims`` leave now for ``head``, the first in line.

    The idle ones stay while others are in use: alone they make no room.
    """
    in_use = [victim for victim in victims if victim.busy]
    if not in_use:
        idle = tuple(victim for victim in victims if isinstance(victim.state, Ready))
        return MakingRoom(idle, math.inf, "waits for memory to come free")
    ends = {
        victim: patience_ends(head, victim, drain_after)
        for victim in in_use
        if isinstance(victim.state, Ready) and _arrival(victim) > _arrival(head)
    }
    return MakingRoom(
        drain=tuple(victim for victim, end in ends.items() if end <= now),
        again_at=min((end for end in ends.values() if end > now), default=math.inf),
        reason=f"waits for {', '.join(victim.id for victim in in_use)}, in use",
    )


def need_not_leave(records: Iterable[ModelRecord]) -> list[ModelRecord]:
    """Models that leave for memory's sake, and were pinned meanwhile or make room for a request
    which is no longer the first for its model in line."""
    known = list(records)
    first = {record.waiting[0] for record in in_line(known) if record.waiting}
    return [record for record in known if _need_not_leave(record, first)]


def _need_not_leave(record: ModelRecord, first: Collection[Waiter]) -> bool:
    # What somebody asked to be unloaded goes, whatever else it was to leave for.
    if not isinstance(record.state, Draining) or record.unloaded:
        return False
    match record.state.reason:
        case DrainReason.MAKE_ROOM:
            return record.pinned or record.makes_room_for not in first
        case DrainReason.PRESSURE:
            return record.pinned
        case _:
            return False


def next_due(records: Iterable[ModelRecord], idle_timeout: float | None) -> float | None:
    """The earliest time at which something happens to one of ``records`` by time alone.

    ``idle_timeout`` is that of models without one of their own.
    """
    due = math.inf
    for record in records:
        if not isinstance(record.state, Loading):
            # A load that has begun is waited for, whatever the deadlines.
            due = min(due, *(waiter.deadline for waiter in record.waiting), math.inf)
        match record.state:
            case Draining(deadline=deadline):
                due = min(due, deadline)
            case Failed(retry_at=retry_at) if record.wanted:
                due = min(due, retry_at)
            case Ready():
                due = min(due, record.idle_ends(idle_timeout))
            case _:
                pass
    return None if due == math.inf else due
