"""What the service commands need to know, gathered from the arguments; and how a status reads."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from omlxd.cli.home import places_of
from omlxd.config.places import APP, Places, absolute, places
from omlxd.errors import ConfigError, ServiceFailed
from omlxd.service import health, interpreter, machine, remembered
from omlxd.service.control import ServiceStatus, is_job
from omlxd.service.definition import Written
from omlxd.service.exit_codes import Ending
from omlxd.service.health import Healthy, Unhealthy
from omlxd.service.interpreter import Interpreter
from omlxd.service.job import Account, JobSpec, carried_environment, is_odd, with_secrets
from omlxd.service.machine import Machine
from omlxd.service.supervisor import Supervisor
from omlxd.service.uninstall import Belongings
from omlxd.service.watch import Watch


@dataclass(frozen=True, slots=True)
class Context:
    """Attributes:
    home: what ``--home`` says, absolute; None for the platform's own places.
    config_file: the configuration that was named; None when it is the one of the places.
    python: the interpreter that runs this command.
    written: what the installed definition says.
    carried: of the environment, what goes into the job.
    """

    arguments: argparse.Namespace
    environ: Mapping[str, str]
    machine: Machine
    places: Places
    home: Path | None
    config_file: Path | None
    python: Interpreter
    written: Written | None
    carried: Mapping[str, str]

    @property
    def executable(self) -> str:
        return self.python.executable

    def job(self) -> JobSpec:
        """What is to be installed.

        Raises ServiceFailed when ``--system`` and ``--user`` do not fit.
        """
        return self.job_of(_account(self.arguments))

    def job_of(self, account: Account | None) -> JobSpec:
        return JobSpec(
            interpreter=self.executable,
            config_file=self.places.config_file,
            state=self.places.state,
            logs=self.places.logs,
            home=self.home,
            environment=self.carried,
            account=account,
        )

    def runs_as(self) -> Account | None:
        """The account of the system daemon: as installed, else the owner of its data folder.

        None for an agent. Raises ServiceFailed when there is no such account.
        """
        if not self.arguments.system:
            return None
        if self.written is not None and self.written.user is not None:
            return machine.account(self.written.user)
        return machine.owner(self.places.state)

    def daemon_environ(self, account: Account | None) -> Mapping[str, str]:
        """What the daemon sees of the environment, as far as it matters to us."""
        if account is None:
            return self.environ
        own = {} if self.written is None else self.written.environment
        return {"XDG_CACHE_HOME": str(account.home / ".cache"), **own}

    def check_interpreter(self, *, force: bool) -> None:
        """Raises ServiceFailed with everything that speaks against this Python."""
        found = interpreter.objections(self.python)
        if any(o.final for o in found) or (found and not force):
            texts = [o.text for o in found if o.final or not force]
            hint = "" if any(o.final for o in found) else "\n(--force installs it all the same.)"
            raise ServiceFailed("not installed: " + "\nand: ".join(texts) + hint)

    def watch(self) -> Watch:
        return Watch(self.places.state, health.ask, self.machine.pace)

    def installed(self) -> Supervisor:
        known = remembered.recall(self.places.state)
        return machine.installed_supervisor(
            self.machine, None if known is None else known.domain, system=self.arguments.system
        )

    def all_supervisors(self) -> tuple[Supervisor, ...]:
        """Every place the job may be in, for taking it out."""
        main = self.installed()
        return (main, *machine.other_places(self.machine, main))

    def belongings(self) -> Belongings:
        usual = [places(self.home, None).config_file]
        if self.home is None and (folder := self.carried.get("XDG_CONFIG_HOME")):
            usual.append(Path(folder) / APP / usual[0].name)
        return Belongings(
            config_file=self.places.config_file if self.places.config_file in usual else None,
            state=self.places.state,
            cache=self.places.cache,
            logs=self.places.logs,
            home=self.home,
        )


def context(arguments: argparse.Namespace, environ: Mapping[str, str], here: Machine) -> Context:
    """From flags and environment; what they leave open is as the installed service has it.

    Raises ConfigError for a home (``~``) of nobody, and for a path with control characters.
    """
    home = _path(arguments.home or environ.get("OMLXD_HOME"))
    config = _path(arguments.config or environ.get("OMLXD_CONFIG"))
    written = machine.written(here, system=arguments.system)
    if written is not None and home is None:
        home = written.home
        config = config or written.config_file
    if home is None and arguments.system:
        home = machine.SYSTEM_HOME
    carried = carried_environment(environ, linux=here.platform == "linux")
    # An installation alone may move the service, to where this shell has its folders.
    moves = getattr(arguments, "verb", None) == "install" and any(map(_is_place, carried))
    if home is None and written is not None and not moves:
        found = places_of(written, config)
        kept = {name: value for name, value in written.environment.items() if _is_place(name)}
        carried = {name: value for name, value in carried.items() if not _is_place(name)} | kept
    else:
        found = places(home, config)
    return Context(
        arguments=arguments,
        environ=environ,
        machine=here,
        places=found,
        home=home,
        config_file=config,
        python=interpreter.look(environ),
        written=written,
        carried=carried,
    )


def _is_place(variable: str) -> bool:
    return variable.startswith("XDG_")


def _path(named: str | None) -> Path | None:
    if named and is_odd(named):
        raise ConfigError([f"{named!r}: a path with a character that cannot be used here"])
    return absolute(Path(named)) if named else None


def not_carried(environ: Mapping[str, str]) -> list[str]:
    """What a person must know who relies on the settings of this shell."""
    # Late: every command but ``install`` does without all the options.
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
    """Whether the service runs, answers, and is not one that was started by hand."""
    return (
        status.elsewhere is None
        and status.record is not None
        and is_job(status.job, status.record)
        and isinstance(status.health, Healthy)
        and status.health.instance_id == status.record.instance_id
    )


def as_text(status: ServiceStatus, executable: str) -> list[str]:
    """A few lines for a person: the state first, then what explains it."""
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
    """None when it runs as the service: what is wrong then is said by its health."""
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


def _account(arguments: argparse.Namespace) -> Account | None:
    name = getattr(arguments, "user", None)
    if not arguments.system:
        if name is not None:
            raise ServiceFailed("--user is for --system; without it the service is your own")
        return None
    if name is None:
        raise ServiceFailed("--system needs --user NAME: the account the daemon runs as, not root")
    return machine.account(name)
