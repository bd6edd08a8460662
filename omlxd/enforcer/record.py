"""The record of the guard's last decisions, and the listeners for new ones."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from omlxd.policy.actions import (
    Action,
    ActionOutcome,
    IdleReclaim,
    ReclaimBufferCache,
    WalkStoreCap,
)
from omlxd.policy.decision import Decision, subject
from omlxd.policy.eviction import Eviction
from omlxd.units import MiB

RING = 500
LISTENER_BACKLOG = 500
ROOM_RULE = "room_for_load"
"""Name of the rule in the entries of evictions for a load."""
NOTABLE = MiB
"""Bytes. The buffer cache often gives back less than this before a load; that makes no entry."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One decision with its inputs and its outcomes.

    Attributes:
        number: ascending.
        times: how many ticks in a row made this same decision.
        at, last_at: time of the first and the last of these ticks, by the guard's clock.
        unix_at: as ``at``, in seconds since 1970.
        decision, outcomes: of the last of these ticks.
        eviction: set when this entry is about a model that is unloaded to make room for another.
            ``decision`` then holds the memory at that time, and a reason in words.
    """

    number: int
    at: float
    last_at: float
    unix_at: float
    times: int
    decision: Decision
    outcomes: tuple[ActionOutcome, ...]
    changed: bool
    """This decision changed the level or the pause."""
    reclaimed: int = 0
    """Bytes that the buffer cache gave back since the previous decision, added up over all
    repetitions. A reclaim happens at the next step boundary, and the memory of aborted requests
    goes into the buffer cache first. So the bytes that both actions free are counted here, and not
    in their outcomes."""
    eviction: Eviction | None = None

    @property
    def eventful(self) -> bool:
        return (
            self.changed
            or bool(notable_actions(self.decision.actions))
            or self.reclaimed >= NOTABLE
            or self.eviction is not None
        )

    @property
    def last_unix_at(self) -> float:
        return self.unix_at + self.last_at - self.at

    def repeats(self, before: "Entry") -> bool:
        """Whether this is the same decision as ``before`` and nothing changed or was freed."""
        return (
            not self.changed
            and max(self.reclaimed, before.reclaimed) < NOTABLE
            and not any(map(_had_effect, self.outcomes))
            and _gist(self.decision) == _gist(before.decision)
        )


def _had_effect(done: ActionOutcome) -> bool:
    """Whether the action did something. Setting a flag again does nothing, like a refusal."""
    asked = isinstance(done.action, ReclaimBufferCache | IdleReclaim | WalkStoreCap)
    return bool(done.freed) or (done.accepted and not asked)


def _gist(decision: Decision) -> tuple[object, ...]:
    """Two decisions count as the same when these values are equal; sizes may differ."""
    return (
        decision.rule,
        tuple((type(action), subject(action)) for action in notable_actions(decision.actions)),
        decision.memory.level,
        decision.memory.pause,
        decision.memory.emergency,
        decision.memory.enforce,
        decision.look_again,
    )


def notable_actions(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """The actions to show: all except ``WalkStoreCap``, which comes on every tick."""
    return tuple(action for action in actions if not isinstance(action, WalkStoreCap))


def _eviction_reason(eviction: Eviction) -> str:
    model, other = eviction.model_id, eviction.for_model
    match eviction.freed:
        case None:
            return f"The load of '{other}' needs room: '{model}' is to leave."
        case 0:
            return f"'{model}' did not have to leave for the load of '{other}'."
        case _:
            return f"'{model}' has left to make room for the load of '{other}'."


class Record:
    """The last decisions. When two ticks in a row make the same decision at the same look, both
    share one entry with a count."""

    def __init__(self) -> None:
        self._ring: deque[Entry] = deque(maxlen=RING)
        self._listeners: set[asyncio.Queue[Entry | None]] = set()
        self._count = 0
        self._last: Entry | None = None
        self._tick: list[int] = []
        """Numbers of the entries of this tick."""
        self._tick_before: list[int] = []
        self._closed = False

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Oldest first."""
        return tuple(self._ring)

    @property
    def last(self) -> Entry | None:
        """The last decision, which may be a repetition of an older one in the ring."""
        return self._last

    def add(self, entry: Entry, *, begins: bool) -> Entry:
        """Keep ``entry`` under a new number and send it to the listeners, or count a repetition.

        ``begins``: the entry is the first of its tick.
        """
        if begins:
            self._tick_before, self._tick = self._tick, []
        before = self._counterpart()
        if before is not None and entry.repeats(before):
            entry = replace(
                entry,
                number=before.number,
                at=before.at,
                unix_at=before.unix_at,
                times=before.times + 1,
                changed=before.changed,
                reclaimed=before.reclaimed + entry.reclaimed,
            )
            self._ring[before.number - self._count - 1] = entry
        else:
            # The rest of this tick gets new entries too; otherwise it would precede its cause.
            self._tick_before = []
            self._count += 1
            entry = replace(entry, number=self._count)
            self._ring.append(entry)
            self._tell(entry)
        self._tick.append(entry.number)
        self._last = entry
        return entry

    def add_eviction(self, eviction: Eviction, at: float, unix_at: float) -> None:
        """Record that the pool evicts a model to make room for a load: a new entry when the model
        is asked to leave, and the result later in the same entry."""
        if self._last is None:
            return
        decision = replace(
            self._last.decision, actions=(), rule=ROOM_RULE, reason=_eviction_reason(eviction)
        )
        asked = replace(eviction, freed=None)
        begun = next((entry for entry in self._ring if entry.eviction == asked), None)
        if begun is None or eviction.freed is None:
            self._count += 1
            entry = Entry(self._count, at, at, unix_at, 1, decision, (), False, eviction=eviction)
            self._ring.append(entry)
        else:
            entry = replace(begun, last_at=at, decision=decision, eviction=eviction)
            self._ring[begun.number - self._count - 1] = entry
        self._tell(entry)

    def _counterpart(self) -> Entry | None:
        """The entry of the previous tick at the same look."""
        place = len(self._tick)
        if place >= len(self._tick_before):
            return None
        behind = self._count - self._tick_before[place]
        return self._ring[-1 - behind] if behind < len(self._ring) else None

    def close(self) -> None:
        """End the streams of all listeners; no more entries will come."""
        self._closed = True
        self._tell(None)

    async def follow(self, *, replay: bool = False) -> AsyncGenerator[Entry]:
        """Yield each new entry until ``close``. A slow reader loses the oldest entries.

        ``replay``: yield the kept entries first. No entry is then missing or repeated.
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
