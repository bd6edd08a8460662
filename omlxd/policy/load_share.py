"""How much of the device's time a load takes while requests run."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LoadPace:
    """The balance of a load against its share of the time.

    Attributes:
        credit: seconds that its pieces may take now; below zero if they took too much.
        at: time at which the credit was counted; None before the first piece.
    """

    credit: float = 0.0
    at: float | None = None


def after_steps(pace: LoadPace, now: float, *, share: float, most: float) -> LoadPace:
    """``pace`` after the requests had the device until ``now``.

    For their time the load earns seconds, so that it gets ``share`` of the total. It saves at
    most ``most`` seconds, because requests wait while it spends them.
    """
    if pace.at is None:
        return LoadPace(at=now)
    earned = max(now - pace.at, 0.0) * share / (1 - share)
    return LoadPace(min(pace.credit + earned, most), now)


def after_piece(pace: LoadPace, now: float) -> LoadPace:
    """``pace`` after a piece that ended ``now``. Call ``after_steps`` before each piece."""
    began = now if pace.at is None else pace.at
    return replace(pace, credit=pace.credit - max(now - began, 0.0), at=now)


def may_load(pace: LoadPace) -> bool:
    return pace.credit >= 0


def may_load_again(pace: LoadPace) -> bool:
    """Whether another piece comes before the next step: long steps earn time for several pieces."""
    return pace.credit > 0
