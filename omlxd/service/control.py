"""Starts, stops, restarts and describes an installed service."""

from dataclasses import dataclass
from pathlib import Path

import structlog

from omlxd import instance
from omlxd.errors import ServiceFailed
from omlxd.instance import Health, InstanceRecord
from omlxd.service import last_exit, restarts
from omlxd.service.definition import Written, read_back
from omlxd.service.last_exit import LastExit
from omlxd.service.names import EXIT_TIMEOUT
from omlxd.service.remembered import one_at_a_time
from omlxd.service.supervisor import JobView, Pace, Supervisor
from omlxd.service.watch import Watch

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Attributes:
    health: None when no instance runs or it has no address yet.
    killed: the instance of this record ended without a word (SIGKILL, power, native abort).
    interpreter: what the definition starts; None when there is none or it cannot be read.
    elsewhere: the data folder of the installed service, where it is not the one looked at.
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


def start(supervisor: Supervisor, watch: Watch, pace: Pace) -> InstanceRecord:
    """The running instance; started when none ran. Raises ServiceFailed."""
    with one_at_a_time(watch.state, pace):
        _demand_installed(supervisor, watch.state)
        view, running = supervisor.view(), instance.running(watch.state)
        if running is not None and is_job(view, running):
            return watch.until_up(watch.before_any(), supervisor)
        restarts.forget(watch.state)
        before = watch.before()
        if view.loaded:
            supervisor.start()
        else:
            supervisor.load()
        return watch.until_up(before, supervisor)


def stop(supervisor: Supervisor, watch: Watch, pace: Pace, *, disable: bool) -> bool:
    """Stop it; with ``disable`` also for the next login. Whether it was loaded at all."""
    with one_at_a_time(watch.state, pace):
        demand_same_folder(supervisor, watch.state)
        loaded = supervisor.view().loaded
        if disable:
            supervisor.disable()
        supervisor.unload()
        return loaded


def restart(supervisor: Supervisor, watch: Watch, pace: Pace) -> InstanceRecord:
    """A fresh instance, after the running one has drained. Raises ServiceFailed."""
    with one_at_a_time(watch.state, pace):
        _demand_installed(supervisor, watch.state)
        restarts.forget(watch.state)
        if supervisor.view().loaded:
            return restart_loaded(supervisor, watch)
        before = watch.before()
        supervisor.load()
        return watch.until_up(before, supervisor)


def is_job(view: JobView, record: InstanceRecord) -> bool:
    """Whether the job is loaded and the instance is, or may be, its process."""
    return view.loaded and may_be_job(view, record)


def may_be_job(view: JobView, record: InstanceRecord) -> bool:
    """Whether the instance may be the supervisor's process, and was not started by hand."""
    return view.pid == record.pid or (view.pid is None and view.last_exit is None)


def restart_loaded(supervisor: Supervisor, watch: Watch) -> InstanceRecord:
    """Restart a loaded job: SIGTERM, wait, start.

    The clean exit after SIGTERM is 0, so the supervisor does not start it again by itself.
    """
    before = watch.before()
    running, view = instance.running(watch.state), supervisor.view()
    if running is not None and not may_be_job(view, running):
        raise ServiceFailed(
            f"omlxd runs already, but not as the service: pid {running.pid} "
            f"({running.url or 'no address yet'}). Stop it, then run this again."
        )
    supervisor.stop_process()
    patience = EXIT_TIMEOUT + 5.0
    # Without a record (it could not be written) only the supervisor tells when the process ends.
    pid = view.pid if running is None else running.pid
    ended = running is None or watch.until_ended(running, patience)
    if ended and (pid is None or watch.until_noticed(pid, supervisor.view, patience)):
        supervisor.start()
    else:
        # It takes no notice of SIGTERM: the supervisor's own stop ends in SIGKILL.
        log.warning("restart_by_force", pid=pid)
        supervisor.load()
    return watch.until_up(before, supervisor)


def status(supervisor: Supervisor, watch: Watch) -> ServiceStatus:
    """Everything at once; changes nothing."""
    look = watch.look()
    left = instance.read_record(watch.state)
    content = _content(supervisor)
    written = None if content is None else read_back(content)
    interpreter = None if written is None else written.interpreter
    return ServiceStatus(
        where=supervisor.name,
        definition=supervisor.definition,
        installed=content is not None,
        job=supervisor.view(),
        record=look.record,
        killed=left if look.record is None else None,
        health=look.health,
        last_exit=last_exit.read(watch.state),
        interpreter=interpreter,
        interpreter_exists=interpreter is not None and Path(interpreter).exists(),
        elsewhere=_elsewhere(written, watch.state),
    )


def _demand_installed(supervisor: Supervisor, state: Path) -> None:
    if _content(supervisor) is None:
        raise ServiceFailed(
            f"the service is not installed (no {supervisor.definition}); "
            "run `omlxd service install`"
        )
    demand_same_folder(supervisor, state)


def demand_same_folder(supervisor: Supervisor, state: Path) -> None:
    """Raises ServiceFailed when the installed service, if there is one, has another data folder."""
    content = _content(supervisor)
    written = None if content is None else read_back(content)
    if (other := _elsewhere(written, state)) is not None:
        raise ServiceFailed(
            f"the installed service has another data folder, {other}, not {state}: leave out "
            "--home and OMLXD_HOME, or move the service here with `omlxd service install`"
        )


def _content(supervisor: Supervisor) -> bytes | None:
    try:
        return supervisor.definition.read_bytes()
    except OSError:
        return None


def _elsewhere(written: Written | None, state: Path) -> Path | None:
    if written is None or written.state is None or written.state.resolve() == state.resolve():
        return None
    return written.state
