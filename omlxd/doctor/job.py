"""Checks the installed service: its definition, its Python, and what its supervisor says."""

import stat
from collections.abc import Sequence
from pathlib import Path

from omlxd.doctor.finding import Finding, fail, ok, warn
from omlxd.service.control import ServiceStatus, is_job
from omlxd.service.interpreter import Objection
from omlxd.service.names import EXIT_TIMEOUT

INSTALL = "omlxd service install"


def check_service(
    status: ServiceStatus, executable: str, objections: Sequence[Objection]
) -> list[Finding]:
    """``executable``: the Python of this command; ``objections``: against a service on it."""
    if not status.installed:
        finding = warn("service", "not installed: nothing starts the daemon at login", INSTALL)
        return [finding, *(warn("service", objection.text) for objection in objections)]
    return [
        check_interpreter(status, executable),
        *check_definition(status.definition),
        check_job(status),
    ]


def check_interpreter(status: ServiceStatus, executable: str) -> Finding:
    """The Python that the definition starts, against the one that runs this."""
    name = "service python"
    if status.interpreter is None:
        return warn(name, f"{status.definition} cannot be understood", INSTALL)
    if not status.interpreter_exists:
        return fail(name, f"{status.interpreter} is gone; the service cannot start", INSTALL)
    if status.interpreter != executable:
        text = f"the service runs with {status.interpreter}, this command with {executable}"
        return warn(name, text, f"{INSTALL}, if this is the one to use")
    return ok(name, status.interpreter)


def check_definition(path: Path) -> list[Finding]:
    """launchd refuses a definition that others can change."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        return [fail("service file", f"{path}: {error.strerror}", INSTALL)]
    if mode & 0o022:
        text = f"{path}: others may change it (mode {mode:04o}), so launchd refuses it"
        return [fail("service file", text, f"chmod 644 '{path}'")]
    return []


def check_patience(drain_limit: float, stop_limit: float) -> list[Finding]:
    """Seconds, as configured, against those after which launchd or systemd kills the process."""
    if drain_limit + stop_limit <= EXIT_TIMEOUT:
        return []
    text = (
        f"a stop may take {drain_limit + stop_limit:.0f} s (server.drain_limit, "
        f"server.stop_limit), and the service is killed after {EXIT_TIMEOUT:.0f} s"
    )
    return [warn("service stop", text, f"keep both together within {EXIT_TIMEOUT:.0f} s")]


def check_job(status: ServiceStatus) -> Finding:
    """What launchd or systemd says now."""
    job, name = status.job, status.where
    last = status.last_exit
    why = f"; the last run ended: {last.message}" if last is not None and last.message else ""
    if status.elsewhere is not None:
        text = f"the installed service has another data folder: {status.elsewhere}"
        return warn(name, text, "leave out --home (and OMLXD_HOME)")
    if not job.loaded:
        return warn(name, f"the job is not loaded{why}", "omlxd service start")
    if status.record is not None and not is_job(job, status.record):
        text = f"the job is loaded; what runs was started by hand (pid {status.record.pid})"
        return warn(name, text, f"kill {status.record.pid}, then: omlxd service start")
    if job.pid is None and status.record is None:
        seen = f" ({job.last_exit})" if job.last_exit else ""
        return fail(name, f"the job is loaded and does not run{seen}{why}", "omlxd service logs")
    if status.record is None:
        text = f"the job runs (pid {job.pid}) without a record: is the disk full?"
        return warn(name, text, "make room, then: omlxd service restart")
    return ok(name, f"the job is loaded and runs (pid {status.record.pid})")
