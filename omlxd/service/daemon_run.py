"""One run of the daemon: alone in its data folder, counted, and recorded when it ends.

The lock is ``flock`` on a file that is never removed, so it ends with the process. The record
beside it (see ``omlxd.instance``) names the instance, its process and its address. A record whose
process is gone means that the daemon was killed.
"""

import contextlib
import errno
import fcntl
import os
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

import structlog

from omlxd.errors import AlreadyRunning, ConfigError, OmlxdError
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
from omlxd.service import exits
from omlxd.service.exits import Ending, ExitCode, ExitingProcess
from omlxd.service.job import STDERR, STDOUT
from omlxd.service.log_files import trim
from omlxd.store import write_json

log = structlog.get_logger(__name__)

LOCK_RETRY = 0.02
"""Seconds; a command that only checks the lock holds it for less."""

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class InstanceLock:
    """Held by the one daemon of a data folder; made by ``take``."""

    def __init__(self, state: Path, descriptor: int, record: InstanceRecord) -> None:
        self._state = state
        self._descriptor: int | None = descriptor
        self.record = record

    def announce(self, host: str, port: int) -> None:
        """Record the address of the API."""
        self.record = replace(self.record, host=host, port=port)
        self.write()

    def write(self) -> None:
        """Write the record. On a full disk the daemon goes on without one."""
        try:
            write_json(self._state / RECORD, asdict(self.record))
        except OSError as error:
            log.warning("instance_not_recorded", folder=str(self._state), error=str(error))

    def release(self) -> None:
        """Remove the record, then release the lock. May be called twice."""
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
    """Become the instance of ``state``. The folder is made when it is missing.

    Raises AlreadyRunning naming the holder, ConfigError when the folder cannot be used.
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
        # The volume has no locks (some network shares), so the record must decide.
        free = previous is None or not is_alive(previous, started)
    if not free:
        os.close(descriptor)
        raise _already_running(state, previous, started)
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


Body = Callable[[InstanceLock], int]
"""The daemon itself: reads the configuration, binds, announces, serves. Returns its exit code."""


@dataclass(frozen=True, slots=True)
class DaemonRun:
    """``supervised``: launchd or systemd started this process (``--supervised``)."""

    state: Path
    logs: Path
    version: str
    interpreter: str
    supervised: bool

    def run(self, body: Body) -> int:
        """Hold the data folder while ``body`` runs. Returns the exit code for the process.

        An error of ``body`` is written to stderr and recorded. Only KeyboardInterrupt and
        SystemExit are raised. Events are logged from the start, so configure structlog first, on
        a stream that survives a full disk (RotatingLog).
        """
        if self.supervised:
            for name in (STDOUT, STDERR):
                trim(self.logs / name)
        try:
            lock = take(
                self.state, version=self.version, interpreter=self.interpreter, now=time.time()
            )
        except OmlxdError as error:
            return self._fail(error, None)
        try:
            if self.supervised and exits.count_start(self.state, time.time()):
                return self._end_loop(lock)
            return self._run_body(body, lock)
        finally:
            lock.release()

    def record_exit(self, lock: InstanceLock, code: int) -> int:
        """Record that the daemon ended with ``code``. Returns the exit code for the process."""
        process = self._process(lock)
        if code == ExitCode.STOPPED:
            return exits.record_exit(self.state, None, process, now=time.time())
        code = exits.record_ending(self.state, Ending.BROKEN, None, process, now=time.time())
        return self._unless_uncounted(lock, code)

    def _run_body(self, body: Body, lock: InstanceLock) -> int:
        try:
            code = body(lock)
        except SystemExit as exiting:
            if exiting.code == ExitCode.STOPPED:
                self.record_exit(lock, ExitCode.STOPPED)
            raise
        except Exception as error:
            if not isinstance(error, OmlxdError):
                log.critical("daemon_failed", exc_info=error)
            return self._unless_uncounted(lock, self._fail(error, lock))
        return self.record_exit(lock, code)

    def _process(self, lock: InstanceLock | None) -> ExitingProcess:
        instance_id = None if lock is None else lock.record.instance_id
        return ExitingProcess(os.getpid(), instance_id, self.supervised)

    def _unless_uncounted(self, lock: InstanceLock, code: int) -> int:
        """``code``, but no restart when the start was not counted: that loop might never end."""
        counted = exits.is_counted(self.state, lock.record.started_at)
        if code != ExitCode.RESTART or not self.supervised or counted:
            return code
        log.error("not_restarted", reason="the start could not be counted", folder=str(self.state))
        _say(f"it stays down: {self.state} cannot be written, so a restart loop would not be seen")
        return ExitCode.STOPPED

    def _fail(self, error: Exception, lock: InstanceLock | None) -> int:
        mistakes = error.mistakes if isinstance(error, ConfigError) else (str(error),)
        for mistake in mistakes:
            _say(mistake)
        return exits.record_exit(self.state, error, self._process(lock), now=time.time())

    def _end_loop(self, lock: InstanceLock) -> int:
        before = exits.read_last_exit(self.state)
        why = before.message if before is not None and before.message else "see the log"
        error = OmlxdError(
            f"started {exits.MOST_STARTS} times in a row and lived less than "
            f"{exits.SHORT_LIFE / 60:.0f} minutes each time, so it stays down "
            f"until `omlxd service start`. The last time: {why}"
        )
        _say(str(error))
        process = self._process(lock)
        return exits.record_ending(self.state, Ending.LOOPING, error, process, now=time.time())


def _open_lock(state: Path) -> int:
    try:
        return os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        # On a full disk no file can be made, but the folder itself can be locked.
        return os.open(state, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)


def _lock(descriptor: int) -> bool:
    for pause in (LOCK_RETRY, LOCK_RETRY, None):
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


def _already_running(
    state: Path, record: InstanceRecord | None, started: ProcessStart
) -> AlreadyRunning:
    details: dict[str, object] = {}
    if record is not None:
        details = {key: getattr(record, key) for key in ("pid", "started_at", "instance_id")}
    if record is None or not is_alive(record, started):
        return AlreadyRunning(
            f"Another process holds the data folder {state}, and left no record of itself. "
            f"Wait a moment, or find it with: lsof {state / LOCK}",
            **details,
        )
    since = datetime.fromtimestamp(record.started_at).strftime("%Y-%m-%d %H:%M:%S")
    where = f" at {record.url}" if record.url else ""
    return AlreadyRunning(
        f"omlxd is already running on the data folder {state}: pid {record.pid}{where}, "
        f"since {since}. Stop it (`omlxd service stop`, or kill {record.pid}), "
        "or use another folder with --home.",
        **details,
    )


def _say(text: str) -> None:
    # Under launchd stderr is a file, and its disk may be full.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"omlxd: {text}\n")
        sys.stderr.flush()
