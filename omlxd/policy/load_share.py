"""How much of the device's time a load takes while requests run, however long a piece takes."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LoadPace:
    """Where a load stands against its share.

    Attributes:
        credit: seconds that its pieces may take now; below zero, what they took too much.
        at: when it was counted; None before the first piece.
    """

    credit: float = 0.0
    at: float | None = None


def waited(pace: LoadPace, now: float, *, share: float, most: float) -> LoadPace:
    """``pace`` after the requests had the device until ``now``.

    For each second of theirs the load earns what makes its part ``share`` of both together; it
    saves up ``most`` seconds, since requests wait while it spends them.
    """
    if pace.at is None:
        return LoadPace(at=now)
    earned = max(now - pace.at, 0.0) * share / (1 - share)
    return LoadPace(min(pace.credit + earned, most), now)


def spent(pace: LoadPace, now: float) -> LoadPace:
    """``pace`` after a piece that ended ``now``; ``waited`` comes before each."""
    began = now if pace.at is None else pace.at
    return replace(pace, credit=pace.credit - max(now - began, 0.0), at=now)


def may_load(pace: LoadPace) -> bool:
    return pace.credit >= 0


def goes_on(pace: LoadPace) -> bool:
    """Another piece comes before the next step: long steps leave time for many."""
    return pace.credit > 0
