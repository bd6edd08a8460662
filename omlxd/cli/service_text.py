"""The state of the service as text for people and as JSON for programs."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from omlxd.instance import Healthy, Unhealthy
from omlxd.service.control import ServiceStatus, is_job
from omlxd.service.exits import Ending
from omlxd.service.job import with_secrets


def not_carried(environ: Mapping[str, str]) -> list[str]:
    """Warnings about settings of this shell that the service does not get."""
    # Imported late: only ``install`` needs all the options.
    from omlxd.config.load import variables

    lines = []
    if options := sorted(variables(environ)[0].values()):
        lines.append(
            f"The service does not see these settings of this shell: {', '.join(options)}. "
            "Put them into the configuration file."
        )
    if secrets := with_secrets(environ):
        lines.append(
            "The service goes without these settings, since everybody may read its definition and "
            f"their address may hold a password or a token: {', '.join(secrets)}."
        )
    return lines


def is_healthy(status: ServiceStatus) -> bool:
    """Whether the service runs and answers, and was not started by hand."""
    return (
        status.elsewhere is None
        and status.record is not None
        and is_job(status.job, status.record)
        and isinstance(status.health, Healthy)
        and status.health.instance_id == status.record.instance_id
    )


def as_text(status: ServiceStatus, executable: str) -> list[str]:
    """A few lines for people: first the state, then its explanation."""
    lines = [_headline(status), f"  where       {status.where}"]
    if status.installed:
        lines.append(f"  definition  {status.definition}")
    if status.interpreter is not None:
        lines.append(f"  python      {status.interpreter}")
    if status.record is not None:
        lines.append(f"  pid         {status.record.pid}, since {_time(status.record.started_at)}")
    match status.health:
        case Unhealthy(why):
            lines.append(f"  health      {why}")
        case Healthy(_, version):
            lines.append(f"  version     {version}")
        case None:
            pass
    return lines + _explanations(status, executable)


def as_json(status: ServiceStatus) -> dict[str, Any]:
    last, record = status.last_exit, status.record
    return {
        "where": status.where,
        "definition": str(status.definition),
        "installed": status.installed,
        "elsewhere": None if status.elsewhere is None else str(status.elsewhere),
        "healthy": is_healthy(status),
        "interpreter": status.interpreter,
        "interpreter_exists": status.interpreter_exists,
        "job": asdict(status.job),
        "instance": None if record is None else {**asdict(record), "url": record.url},
        "killed_instance": None if status.killed is None else asdict(status.killed),
        "health": None if status.health is None else asdict(status.health),
        "last_exit": None if last is None else {**asdict(last), "ending": last.ending.value},
    }


def _headline(status: ServiceStatus) -> str:
    if is_healthy(status):
        assert status.record is not None
        return f"omlxd runs and is healthy: {status.record.url}"
    if status.elsewhere is not None:
        return f"omlxd is installed with another data folder: {status.elsewhere}"
    if status.record is not None and not is_job(status.job, status.record):
        return f"omlxd runs, but not as the service (started by hand, pid {status.record.pid})"
    if status.record is not None:
        return "omlxd runs and is not healthy"
    if status.job.pid is not None:
        return f"omlxd runs (pid {status.job.pid}) without a record (is the disk full?)"
    if status.job.loaded:
        return "omlxd is installed and loaded, and does not run"
    return "omlxd is installed and stopped" if status.installed else "omlxd is not installed"


def _explanations(status: ServiceStatus, executable: str) -> list[str]:
    lines = []
    last, killed = status.last_exit, status.killed
    if status.record is None and last is not None and last.error is not None:
        lines.append(f"  last exit   {_time(last.at)}, code {last.code}: {last.message}")
    if killed is not None:
        lines.append(
            f"  killed      pid {killed.pid}, which ran since {_time(killed.started_at)}, ended "
            "without a word (kill -9, power, or a native crash: `omlxd service logs --stderr`)"
        )
    if status.job.pid is None and status.job.last_exit is not None and status.record is None:
        lines.append(f"  supervisor  saw it end last with {status.job.last_exit}")
    if status.interpreter_exists and status.interpreter != executable:
        lines.append(f"  note        this command runs with another Python: {executable}")
    remedy = _remedy(status)
    return lines if remedy is None else [*lines, f"  remedy      {remedy}"]


def _remedy(status: ServiceStatus) -> str | None:
    """The remedy. None when the daemon runs as the service; then its health has the reason."""
    record, job, last = status.record, status.job, status.last_exit
    if not status.installed:
        return "omlxd service install"
    if status.elsewhere is not None:
        return "leave out --home (and OMLXD_HOME); `omlxd service install` moves the service here"
    if status.interpreter is not None and not status.interpreter_exists:
        return "its Python is gone: run `omlxd service install` again"
    if record is not None:
        return None if is_job(job, record) else f"kill {record.pid}, then: omlxd service start"
    if job.pid is not None:
        return "make room on the disk, then: omlxd service restart"
    if last is not None and last.ending is Ending.CONFIG:
        return "mend the configuration, then: omlxd service start"
    return "omlxd service start"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")
