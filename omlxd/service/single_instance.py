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
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

import structlog

from omlxd.errors import AlreadyRunning, ConfigError
from omlxd.service.files import make_private_folder, read_json, write_json

log = structlog.get_logger(__name__)

LOCK = "omlxd.lock"
RECORD = "instance.json"
SAME_START = 2.0
"""Seconds; a process's start is computed from the boot time, which clock steps move a little."""
LOOK = 0.02
"""Seconds; longer than a command takes that looks whether the lock is held."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_TAKEN = frozenset({errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK})

ProcessStart = Callable[[int], float | None]


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """Attributes:
    process_started: when the process began, as the system tells, seconds since 1970;
        with ``pid`` it names a process for good, since pids are used again.
    started_at: when it took the folder, seconds since 1970.
    host, port: where the API answers; None until the port is bound.
    interpreter: the Python that runs it, symbolic links unresolved.
    """

    instance_id: str
    pid: int
    started_at: float
    version: str
    host: str | None = None
    port: int | None = None
    process_started: float | None = None
    interpreter: str | None = None

    @property
    def url(self) -> str | None:
        """An address that a client on this machine can use."""
        if self.host is None or self.port is None:
            return None
        return reachable_url(self.host, self.port)


def process_start(pid: int) -> float | None:
    """When the process ``pid`` began, seconds since 1970; None when there is no such process."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return 0.0


def is_alive(record: InstanceRecord, started: ProcessStart = process_start) -> bool:
    """Whether the recorded process still runs, and is not another one with its pid."""
    now = started(record.pid)
    if now is None:
        return False
    unknown = record.process_started is None or now == 0.0
    return unknown or abs(now - (record.process_started or 0.0)) <= SAME_START


def read_record(state: Path) -> InstanceRecord | None:
    """Who wrote the record last, alive or not; None when there is none or it is damaged."""
    value = read_json(state / RECORD)
    if value is None:
        return None
    known = {k: value[k] for k in InstanceRecord.__dataclass_fields__ if k in value}
    try:
        record = InstanceRecord(**known)
        sound = record.pid > 0 and record.started_at >= 0 and record.instance_id != ""
    except TypeError:
        return None
    return record if sound else None


def running(state: Path, started: ProcessStart = process_start) -> InstanceRecord | None:
    """The instance that runs on this data folder now."""
    record = read_record(state)
    return record if record is not None and is_alive(record, started) else None


def is_held(state: Path) -> bool:
    """Whether a process holds the folder, be there a record of it or not."""
    return _is_locked(state / LOCK) or _is_locked(state)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Let go at once; a daemon that starts in this moment asks for it again.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _TAKEN
    finally:
        os.close(descriptor)
    return False


class InstanceLock:
    """Held by the one daemon of a data folder; made by ``take``."""

    def __init__(
        self,
        state: Path,
        descriptor: int,
        record: InstanceRecord,
        stale: InstanceRecord | None,
    ) -> None:
        self._state = state
        self._descriptor: int | None = descriptor
        self.record = record
        self.stale = stale
        """What the previous instance left because it was killed; None after a clean end."""

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
        make_private_folder(state)
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
    lock = InstanceLock(state, descriptor, record, previous)
    lock.write()
    return lock


def reachable_url(host: str, port: int) -> str:
    """An address that a client on this machine can use for a listener bound to ``host``."""
    near = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{near}]:{port}" if ":" in near else f"http://{near}:{port}"


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
            if error.errno not in _TAKEN:
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
