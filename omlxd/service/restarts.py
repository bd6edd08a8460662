"""Ends a restart loop: counts supervised starts and says when too many lives were short.

launchd spaces restarts ten seconds apart but never gives up; a fault at every start (a native
abort, or the kernel's kill while models load, cannot report itself as permanent) would go on for
ever, however long each life takes.
"""

import contextlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import structlog

from omlxd.store import peek_json, write_json

log = structlog.get_logger(__name__)

NAME = "starts.json"
MOST_STARTS: Final = 6
SHORT_LIFE: Final = 900.0
"""Seconds; whoever lived longer was no part of a loop."""


def in_a_row(starts: Sequence[float], now: float) -> tuple[float, ...]:
    """The last of ``starts``, each of which came soon after the one before, up to ``now``.

    A clean stop forgets its start, so each of them ended badly. A time in the future (a set
    clock) begins the row anew.
    """
    row: list[float] = []
    for later, earlier in pairwise((now, *reversed(starts))):
        if not 0 <= later - earlier < SHORT_LIFE:
            break
        row.append(earlier)
    return tuple(reversed(row))


def is_looping(starts: Sequence[float], now: float) -> bool:
    """Whether a start at ``now``, the last of ``starts``, is one too many."""
    return len(in_a_row(starts, now)) > MOST_STARTS


def note_start(state: Path, now: float) -> bool:
    """Count this start; True when the daemon must not go on. A bad disk counts nothing."""
    starts = (*in_a_row(_read(state), now), now)
    try:
        write_json(state / NAME, {"starts": list(starts)})
    except OSError as failure:
        log.warning("start_not_counted", folder=str(state), error=str(failure))
    return is_looping(starts, now)


def is_counted(state: Path, since: float) -> bool:
    """Whether a start at or after ``since`` is on the disk: only then does a loop of it end."""
    return any(at >= since for at in _read(state))


def forget(state: Path) -> None:
    """A person, or a clean stop, starts the count anew."""
    with contextlib.suppress(OSError):
        (state / NAME).unlink(missing_ok=True)


def _read(state: Path) -> tuple[float, ...]:
    value = peek_json(state / NAME) or {}
    starts = value.get("starts")
    if not isinstance(starts, list):
        return ()
    return tuple(float(at) for at in starts if isinstance(at, int | float))
