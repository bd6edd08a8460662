"""One run of the daemon as its supervisor sees it: alone in its folder, counted, and ended with a
code that restarts only what a restart helps."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from omlxd.errors import ConfigError, OmlxdError
from omlxd.service import last_exit, restarts
from omlxd.service.exit_codes import Ending, ExitCode
from omlxd.service.last_exit import Leaving
from omlxd.service.logfiles import trim
from omlxd.service.names import STDERR, STDOUT
from omlxd.service.single_instance import InstanceLock, take

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Tenant:
    """``supervised``: launchd or systemd started this process (``--supervised``)."""

    state: Path
    logs: Path
    version: str
    interpreter: str
    supervised: bool


Body = Callable[[InstanceLock], int]
"""The daemon itself: reads the configuration, binds, announces, serves; its exit code."""


def run(tenant: Tenant, body: Body) -> int:
    """Hold ``tenant.state`` while ``body`` runs; the exit code for the process.

    What ``body`` raises is said on stderr and recorded. Nothing is raised but what means that
    the process is being ended (KeyboardInterrupt, SystemExit). Events are logged from the first
    moment, so set structlog up before, on a stream that a full disk does not break (RotatingLog).
    """
    if tenant.supervised:
        for name in (STDOUT, STDERR):
            trim(tenant.logs / name)
    who = Leaving(os.getpid(), None, tenant.supervised)
    try:
        lock = take(
            tenant.state, version=tenant.version, interpreter=tenant.interpreter, now=time.time()
        )
    except OmlxdError as error:
        return _end(tenant, error, who)
    try:
        who = Leaving(os.getpid(), lock.record.instance_id, tenant.supervised)
        if tenant.supervised and restarts.note_start(tenant.state, time.time()):
            return _stop_looping(tenant, who)
        return _live(tenant, body, lock, who)
    finally:
        lock.release()


def _live(tenant: Tenant, body: Body, lock: InstanceLock, who: Leaving) -> int:
    try:
        code = body(lock)
    except SystemExit as left:
        if left.code == ExitCode.STOPPED:
            note_ending(tenant, lock, ExitCode.STOPPED)
        raise
    except Exception as error:
        if not isinstance(error, OmlxdError):
            log.critical("daemon_failed", exc_info=error)
        return _worth_a_try(tenant, lock, _end(tenant, error, who))
    return note_ending(tenant, lock, code)


def note_ending(tenant: Tenant, lock: InstanceLock, code: int) -> int:
    """Record that the daemon ended with ``code``; the exit code for the process."""
    who = Leaving(os.getpid(), lock.record.instance_id, tenant.supervised)
    if code == ExitCode.STOPPED:
        return last_exit.conclude(tenant.state, None, who, now=time.time())
    code = last_exit.record(tenant.state, Ending.BROKEN, None, who, now=time.time())
    return _worth_a_try(tenant, lock, code)


def _worth_a_try(tenant: Tenant, lock: InstanceLock, code: int) -> int:
    """``code``, unless it asks for a restart that nobody would count: that never ended."""
    counted = restarts.is_counted(tenant.state, lock.record.started_at)
    if code != ExitCode.RESTART or not tenant.supervised or counted:
        return code
    log.error("not_restarted", reason="the start could not be counted", folder=str(tenant.state))
    _say(f"it stays down: {tenant.state} cannot be written, so a restart loop would not be seen")
    return ExitCode.STOPPED


def _end(tenant: Tenant, error: Exception, who: Leaving) -> int:
    mistakes = error.mistakes if isinstance(error, ConfigError) else (str(error),)
    for mistake in mistakes:
        _say(mistake)
    return last_exit.conclude(tenant.state, error, who, now=time.time())


def _stop_looping(tenant: Tenant, who: Leaving) -> int:
    before = last_exit.read(tenant.state)
    why = before.message if before is not None and before.message else "see the log"
    error = OmlxdError(
        f"started {restarts.MOST_STARTS} times in a row and lived less than "
        f"{restarts.SHORT_LIFE / 60:.0f} minutes each time, so it stays down "
        f"until `omlxd service start`. The last time: {why}"
    )
    _say(str(error))
    return last_exit.record(tenant.state, Ending.LOOPING, error, who, now=time.time())


def _say(text: str) -> None:
    # Under launchd stderr is a file, and its disk may be full.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"omlxd: {text}\n")
        sys.stderr.flush()
