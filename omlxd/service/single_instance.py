"""One daemon per data folder: a lock that dies with its process, and a record of who holds it.

The lock is ``flock`` on a file that is never removed; the record beside it names the instance,
its process and its address. Other programs read the record, and where there is none they look
whether the lock is held; a record whose process is gone is stale and says that the daemon was
killed.
"""

import contextlib
import errno
import fcntl
import os
import time
import uuid
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import structlog

from omlxd.errors import AlreadyRunning, ConfigError
from omlxd.instance import (
    LOCK,
    RECORD,
    TAKEN,
    InstanceRecord,
    ProcessStart,
    is_alive,
    process_start,
    read_record,
)
from omlxd.store import write_json

log = structlog.get_logger(__name__)

LOOK = 0.02
"""Seconds; longer than a command takes that looks whether the lock is held."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class InstanceLock:
    """Held by the one daemon of a data folder; made by ``take``."""

    def __init__(
        self,
        state: Path,
        descriptor: int,
        record: InstanceRecord,
    ) -> None:
        self._state = state
        self._descriptor: int | None = descriptor
        self.record = record

    def announce(self, host: str, port: int) -> None:
        """Let others know where the API answers."""
        self.record = replace(self.record, host=host, port=port)
        self.write()

    def write(self) -> None:
        """Write the record. A disk that takes no more costs the record, not the daemon."""
        try:
            write_json(self._state / RECORD, asdict(self.record))
        except OSError as error:
            log.warning("instance_not_recorded", folder=str(self._state), error=str(error))

    def release(self) -> None:
        """Remove the record and let go, in this order; twice is fine."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            (self._state / RECORD).unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None


def take(
    state: Path,
    *,
    version: str,
    interpreter: str,
    now: float,
    started: ProcessStart = process_start,
) -> InstanceLock:
    """Become the instance of ``state``; the folder is made when missing.

    Raises AlreadyRunning with who holds it, ConfigError when the folder cannot be used.
    """
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = _open_lock(state)
    except OSError as error:
        raise ConfigError(
            [f"the state folder {state} cannot be used: {error.strerror}; mend it or set --home"]
        ) from error
    previous = read_record(state)
    try:
        free = _lock(descriptor)
    except OSError:
        # A volume without locks (some network shares): the record has to do.
        free = previous is None or not is_alive(previous, started)
    if not free:
        os.close(descriptor)
        raise AlreadyRunning(_who(state, previous, started), **_facts(previous))
    if previous is not None:
        log.warning("previous_instance_was_killed", pid=previous.pid, instance=previous.instance_id)
    record = InstanceRecord(
        instance_id=uuid.uuid4().hex,
        pid=os.getpid(),
        process_started=started(os.getpid()),
        started_at=now,
        version=version,
        interpreter=interpreter,
    )
    lock = InstanceLock(state, descriptor, record)
    lock.write()
    return lock


def _open_lock(state: Path) -> int:
    try:
        return os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        # A full disk: the folder itself can be locked as well.
        return os.open(state, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)


def _lock(descriptor: int) -> bool:
    for pause in (LOOK, LOOK, None):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in TAKEN:
                raise
        else:
            return True
        if pause is not None:
            time.sleep(pause)
    return False


def _who(state: Path, record: InstanceRecord | None, started: ProcessStart) -> str:
    if record is None or not is_alive(record, started):
        return (
            f"Another process holds the data folder {state}, and left no record of itself. "
            "Wait a moment, or find it with: lsof " + str(state / LOCK)
        )
    since = datetime.fromtimestamp(record.started_at).strftime("%Y-%m-%d %H:%M:%S")
    where = f" at {record.url}" if record.url else ""
    return (
        f"omlxd is already running on the data folder {state}: pid {record.pid}{where}, "
        f"since {since}. Stop it (`omlxd service stop`, or kill {record.pid}), "
        "or use another folder with --home."
    )


def _facts(record: InstanceRecord | None) -> dict[str, object]:
    if record is None:
        return {}
    return {"pid": record.pid, "started_at": record.started_at, "instance_id": record.instance_id}
