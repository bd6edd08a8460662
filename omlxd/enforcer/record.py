"""The guard's memory of itself: the last decisions, and who listens for the next."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from omlxd.policy.actions import Action, Outcome, WalkStoreCap
from omlxd.policy.decision import Decision
from omlxd.policy.readings import MemoryReading
from omlxd.units import MiB

RING = 500
LISTENER_BACKLOG = 500
NOTABLE = MiB
"""Bytes; a pool that gives back less was as good as empty, as before most loads."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One decision, what it rested on and what came of it.

    Attributes:
        number: ascending; times: how often in a row the same uneventful decision was made.
        at, last_at: of the guard's clock, first and last of them; unix_at: seconds since 1970.
    """

    number: int
    at: float
    last_at: float
    unix_at: float
    times: int
    decision: Decision
    reading: MemoryReading
    outcomes: tuple[Outcome, ...]
    changed: bool
    """The level or the pause changed with it."""
    reclaimed: int = 0
    """Bytes that the allocator's pool gave back since the decision before. The device thread does
    that at its next step boundary, and requests that were aborted leave theirs in the pool, so
    what those actions freed is told here and not in their outcomes."""

    @property
    def eventful(self) -> bool:
        return self.changed or bool(deeds(self.decision.actions)) or self.reclaimed >= NOTABLE


def deeds(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """The actions worth telling: the store caps walk on every tick."""
    return tuple(action for action in actions if not isinstance(action, WalkStoreCap))


class Record:
    """A ring of the last decisions. A row of uneventful ones is one entry with a count."""

    def __init__(self) -> None:
        self._ring: deque[Entry] = deque(maxlen=RING)
        self._listeners: set[asyncio.Queue[Entry | None]] = set()
        self._count = 0
        self._closed = False

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Oldest first."""
        return tuple(self._ring)

    @property
    def last(self) -> Entry | None:
        return self._ring[-1] if self._ring else None

    def add(self, entry: Entry) -> Entry:
        """Keep ``entry`` and tell the listeners; the number in it is given here."""
        last = self.last
        if last is not None and not entry.eventful and not last.eventful:
            entry = replace(
                entry, number=last.number, at=last.at, unix_at=last.unix_at, times=last.times + 1
            )
            self._ring[-1] = entry
            return entry
        self._count += 1
        entry = replace(entry, number=self._count)
        self._ring.append(entry)
        self._tell(entry)
        return entry

    def close(self) -> None:
        """Nothing more will come: whoever follows is let go."""
        self._closed = True
        self._tell(None)

    async def follow(self, *, replay: bool = False) -> AsyncGenerator[Entry]:
        """Entries from now on until ``close``, a slow reader losing the oldest.

        ``replay``: those kept are given first, without a gap or a repetition after them.
        """
        queue: asyncio.Queue[Entry | None] = asyncio.Queue(LISTENER_BACKLOG)
        self._listeners.add(queue)
        if self._closed:
            queue.put_nowait(None)
        kept = self.entries if replay else ()
        try:
            for entry in kept:
                yield entry
            while (news := await queue.get()) is not None:
                yield news
        finally:
            self._listeners.discard(queue)

    def _tell(self, news: Entry | None) -> None:
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(news)
