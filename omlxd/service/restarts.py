"""Ends a restart loop: counts supervised starts and says when there were too many.

launchd spaces restarts ten seconds apart but never gives up; a fault at every start (a native
abort cannot report itself as permanent) would load models for ever.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from omlxd.service.files import make_private_folder, read_json, write_json

log = structlog.get_logger(__name__)

NAME = "starts.json"
MOST_STARTS: Final = 6
WITHIN: Final = 300.0


def recent(starts: Sequence[float], now: float) -> tuple[float, ...]:
    """The starts of the last ``WITHIN`` seconds; times in the future (a set clock) are dropped."""
    return tuple(at for at in starts if now - WITHIN < at <= now)


def is_looping(starts: Sequence[float], now: float) -> bool:
    """Whether a start at ``now``, the last of ``starts``, is one too many."""
    return len(recent(starts, now)) > MOST_STARTS


def note_start(state: Path, now: float) -> bool:
    """Count this start; True when the daemon must not go on. A bad disk counts nothing."""
    starts = (*recent(_read(state), now), now)
    try:
        make_private_folder(state)
        write_json(state / NAME, {"starts": list(starts)})
    except OSError as failure:
        log.warning("start_not_counted", folder=str(state), error=str(failure))
    return is_looping(starts, now)


def forget(state: Path) -> None:
    """A person, or a clean stop, starts the count anew."""
    with contextlib.suppress(OSError):
        (state / NAME).unlink(missing_ok=True)


def _read(state: Path) -> tuple[float, ...]:
    value = read_json(state / NAME) or {}
    starts = value.get("starts")
    if not isinstance(starts, list):
        return ()
    return tuple(float(at) for at in starts if isinstance(at, int | float))
