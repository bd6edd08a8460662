"""What an installation leaves behind for later commands: where the job is and what it runs."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from omlxd.errors import ServiceFailed
from omlxd.service.supervisor import Pace
from omlxd.store import peek_json, write_json

NAME = "service.json"
LOCK = "service.lock"
LOCK_WITHIN = 180.0
"""Seconds; longer than a whole installation by another command takes."""
POLL = 0.25


@dataclass(frozen=True, slots=True)
class StateFile:
    """``domain`` as ``Supervisor.domain``; ``definition``, ``interpreter`` are absolute paths."""

    domain: str
    definition: str
    interpreter: str
    version: str


def remember(state: Path, what: StateFile) -> None:
    write_json(state / NAME, asdict(what))


def recall(state: Path) -> StateFile | None:
    """None when nothing is installed, or the file is damaged."""
    value = peek_json(state / NAME)
    if value is None:
        return None
    texts = {key: value.get(key) for key in StateFile.__dataclass_fields__}
    if not all(isinstance(text, str) for text in texts.values()):
        return None
    return StateFile(**{key: str(text) for key, text in texts.items()})


def forget(state: Path) -> None:
    (state / NAME).unlink(missing_ok=True)


@contextmanager
def one_at_a_time(state: Path, pace: Pace, *, installs: bool = False) -> Iterator[None]:
    """Only one service command changes things at a time; a second one waits for the first.

    Only an installation makes the lock: without it nothing was installed with this folder, which
    may be a stranger's, and there is nothing to wait for.
    Raises ServiceFailed when the first takes too long, OSError.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if installs else 0)
    try:
        descriptor = os.open(state / LOCK, flags, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        if installs:
            raise
        yield
        return
    try:
        _wait_for(descriptor, state, pace)
        yield
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, state: Path, pace: Pace) -> None:
    limit = pace.now() + LOCK_WITHIN
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if pace.now() >= limit:
                raise ServiceFailed(
                    f"another `omlxd service` command has held {state / LOCK} for "
                    f"{LOCK_WITHIN:.0f} s; end it, then run this again"
                ) from None
            pace.sleep(POLL)
        else:
            return
