"""Who is next: the order of the models that wait for memory, and when patience ends."""

import math
from collections.abc import Iterable

from omlxd.pool.entry import Draining, Failed, Loading, Queued
from omlxd.pool.record import ModelRecord


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


def next_due(records: Iterable[ModelRecord]) -> float | None:
    """The earliest time at which something happens to one of ``records`` by time alone."""
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
            case _:
                pass
    return None if due == math.inf else due
