"""Starts, stops, restarts and describes an installed service, one command at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from omlxd import instance
from omlxd.errors import ServiceFailed
from omlxd.instance import Health, InstanceRecord
from omlxd.service.definition import Definition, parse_definition
from omlxd.service.exits import LastExit, forget_starts, read_last_exit
from omlxd.service.job import EXIT_TIMEOUT
from omlxd.service.supervisor import Clock, JobView, Supervisor
from omlxd.service.watch import Watch
from omlxd.store import peek_json, write_json

log = structlog.get_logger(__name__)

INSTALL_RECORD = "service.json"
COMMAND_LOCK = "service.lock"
LOCK_WITHIN = 180.0
"""Seconds; a whole installation by another command takes less."""
LOCK_POLL = 0.25


@dataclass(frozen=True, slots=True)
class InstallRecord:
    """The record that an installation leaves for later commands.

    ``domain`` is as ``Supervisor.domain``; ``definition`` and ``interpreter`` are absolute paths.
    """

    domain: str
    definition: str
    interpreter: str
    version: str

    def write(self, state: Path) -> None:
        write_json(state / INSTALL_RECORD, asdict(self))


def installed_domain(state: Path) -> str | None:
    """The domain of the last installation; None when there is no readable record."""
    domain = (peek_json(state / INSTALL_RECORD) or {}).get("domain")
    return domain if isinstance(domain, str) else None


def forget_installation(state: Path) -> None:
    (state / INSTALL_RECORD).unlink(missing_ok=True)


@contextmanager
def command_lock(state: Path, clock: Clock, *, installs: bool = False) -> Iterator[None]:
    """Only one service command changes things at a time; a second one waits for the first.

    Only an installation creates the lock file. Without it nothing was ever installed with this
    folder (which may not even be ours), so there is nothing to wait for.
    Raises OSError, and ServiceFailed when the other command takes too long.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if installs else 0)
    try:
        descriptor = os.open(state / COMMAND_LOCK, flags, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        if installs:
            raise
        yield
        return
    try:
        _wait_for(descriptor, state, clock)
        yield
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, state: Path, clock: Clock) -> None:
    limit = clock.now() + LOCK_WITHIN
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.now() >= limit:
                raise ServiceFailed(
                    f"another `omlxd service` command has held {state / COMMAND_LOCK} for "
                    f"{LOCK_WITHIN:.0f} s; end it, then run this again"
                ) from None
            clock.sleep(LOCK_POLL)
        else:
            return


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Attributes:
    health: None when no instance runs or it has no address yet.
    killed: the record of an instance that was killed (SIGKILL, power loss, native abort).
    interpreter: the Python that the definition starts; None without a readable definition.
    elsewhere: the data folder of the installed service, if it differs from ours.
    """

    where: str
    definition: Path
    installed: bool
    job: JobView
    record: InstanceRecord | None
    killed: InstanceRecord | None
    health: Health | None
    last_exit: LastExit | None
    interpreter: str | None
    interpreter_exists: bool
    elsewhere: Path | None = None


def start(supervisor: Supervisor, watch: Watch, clock: Clock) -> InstanceRecord:
    """The running instance. The job is started if none ran. Raises ServiceFailed."""
    with command_lock(watch.state, clock):
        _require_installed(supervisor, watch.state)
        view, running = supervisor.view(), instance.running(watch.state)
        if running is not None and is_job(view, running):
            return watch.until_up(watch.empty_baseline(), supervisor)
        forget_starts(watch.state)
        before = watch.baseline()
        if view.loaded:
            supervisor.start()
        else:
            supervisor.load()
        return watch.until_up(before, supervisor)


def stop(supervisor: Supervisor, watch: Watch, clock: Clock, *, disable: bool) -> bool:
    """Stop it; with ``disable`` it stays off at the next login. Returns whether it was loaded."""
    with command_lock(watch.state, clock):
        require_same_folder(supervisor, watch.state)
        loaded = supervisor.view().loaded
        if disable:
            supervisor.disable()
        supervisor.unload()
        return loaded


def restart(supervisor: Supervisor, watch: Watch, clock: Clock) -> InstanceRecord:
    """Drain the running instance, then return a new one. Raises ServiceFailed."""
    with command_lock(watch.state, clock):
        _require_installed(supervisor, watch.state)
        forget_starts(watch.state)
        if supervisor.view().loaded:
            return restart_loaded(supervisor, watch)
        before = watch.baseline()
        supervisor.load()
        return watch.until_up(before, supervisor)


def is_job(view: JobView, record: InstanceRecord) -> bool:
    """Whether the job is loaded and the instance may be its process."""
    return view.loaded and may_be_job(view, record)


def may_be_job(view: JobView, record: InstanceRecord) -> bool:
    """Whether the instance may be the supervisor's process, not one started by hand."""
    return view.pid == record.pid or (view.pid is None and view.last_exit is None)


def restart_loaded(supervisor: Supervisor, watch: Watch) -> InstanceRecord:
    """Restart a loaded job: SIGTERM, wait, start.

    The daemon exits with 0 after SIGTERM, so the supervisor does not start it by itself.
    """
    before = watch.baseline()
    running, view = instance.running(watch.state), supervisor.view()
    if running is not None and not may_be_job(view, running):
        raise ServiceFailed(
            f"omlxd runs already, but not as the service: pid {running.pid} "
            f"({running.url or 'no address yet'}). Stop it, then run this again."
        )
    supervisor.stop_process()
    limit = EXIT_TIMEOUT + 5.0
    # On a full disk there may be no record; then only the supervisor knows the process.
    pid = view.pid if running is None else running.pid
    ended = running is None or watch.until_ended(running, limit)
    if ended and (pid is None or watch.until_noticed(pid, supervisor.view, limit)):
        supervisor.start()
    else:
        # The process ignores SIGTERM. The supervisor's own stop ends with SIGKILL.
        log.warning("restart_by_force", pid=pid)
        supervisor.load()
    return watch.until_up(before, supervisor)


def status(supervisor: Supervisor, watch: Watch) -> ServiceStatus:
    """The state of the service. Changes nothing."""
    seen = watch.observe()
    left = instance.read_record(watch.state)
    content = _content(supervisor)
    definition = None if content is None else parse_definition(content)
    interpreter = None if definition is None else definition.interpreter
    return ServiceStatus(
        where=supervisor.name,
        definition=supervisor.definition,
        installed=content is not None,
        job=supervisor.view(),
        record=seen.record,
        killed=left if seen.record is None else None,
        health=seen.health,
        last_exit=read_last_exit(watch.state),
        interpreter=interpreter,
        interpreter_exists=interpreter is not None and Path(interpreter).exists(),
        elsewhere=_elsewhere(definition, watch.state),
    )


def _require_installed(supervisor: Supervisor, state: Path) -> None:
    if _content(supervisor) is None:
        raise ServiceFailed(
            f"the service is not installed (no {supervisor.definition}); "
            "run `omlxd service install`"
        )
    require_same_folder(supervisor, state)


def require_same_folder(supervisor: Supervisor, state: Path) -> None:
    """Raises ServiceFailed when the installed service, if there is one, has another data folder."""
    content = _content(supervisor)
    definition = None if content is None else parse_definition(content)
    if (other := _elsewhere(definition, state)) is not None:
        raise ServiceFailed(
            f"the installed service has another data folder, {other}, not {state}: leave out "
            "--home and OMLXD_HOME, or move the service here with `omlxd service install`"
        )


def _content(supervisor: Supervisor) -> bytes | None:
    try:
        return supervisor.definition.read_bytes()
    except OSError:
        return None


def _elsewhere(definition: Definition | None, state: Path) -> Path | None:
    if definition is None or definition.state is None:
        return None
    return None if definition.state.resolve() == state.resolve() else definition.state
