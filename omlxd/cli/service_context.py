"""The context of the service commands, from flags, environment and installed definition."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omlxd.cli.client import service_paths
from omlxd.config.paths import APP, Paths, absolute, standard_paths
from omlxd.errors import ConfigError, ServiceFailed
from omlxd.instance import ask_health
from omlxd.service import control, interpreter, machine
from omlxd.service.definition import Definition
from omlxd.service.interpreter import Interpreter
from omlxd.service.job import Account, JobSpec, carried_environment, is_odd
from omlxd.service.machine import Machine
from omlxd.service.supervisor import Supervisor
from omlxd.service.uninstall import PurgePaths
from omlxd.service.watch import Watch


@dataclass(frozen=True, slots=True)
class Context:
    """Attributes:
    home: the absolute path of ``--home``; None for the platform's own places.
    config_file: the configuration that was named; None for the one in the usual place.
    python: the interpreter that runs this command.
    definition: the content of the installed definition.
    carried: the part of the environment that goes into the job.
    """

    arguments: argparse.Namespace
    environ: Mapping[str, str]
    machine: Machine
    paths: Paths
    home: Path | None
    config_file: Path | None
    python: Interpreter
    definition: Definition | None
    carried: Mapping[str, str]

    @property
    def executable(self) -> str:
        return self.python.executable

    def job(self) -> JobSpec:
        """The job to install.

        Raises ServiceFailed when ``--system`` and ``--user`` do not fit.
        """
        return self.job_of(_account(self.arguments))

    def job_of(self, account: Account | None) -> JobSpec:
        return JobSpec(
            interpreter=self.executable,
            config_file=self.paths.config_file,
            state=self.paths.state,
            logs=self.paths.logs,
            home=self.home,
            environment=self.carried,
            account=account,
        )

    def means_system(self) -> bool:
        """Whether only the daemon of the whole Mac is installed, and ``--system`` was not given."""
        named = self.arguments.system or self.home is not None
        if named or self.definition is not None or self.machine.platform != "darwin":
            return False
        return machine.definition(self.machine, system=True) is not None

    def runs_as(self) -> Account | None:
        """The account of the system daemon: the installed one, else the owner of its data folder.

        None for an agent. Raises ServiceFailed when there is no such account.
        """
        if not self.arguments.system:
            return None
        if self.definition is not None and self.definition.user is not None:
            return machine.account(self.definition.user)
        return machine.owner(self.paths.state)

    def daemon_environ(self, account: Account | None) -> Mapping[str, str]:
        """The part of the daemon's environment that matters here."""
        if account is None:
            return self.environ
        own = {} if self.definition is None else self.definition.environment
        return {"XDG_CACHE_HOME": str(account.home / ".cache"), **own}

    def check_interpreter(self, *, force: bool) -> None:
        """Raises ServiceFailed with every objection to this Python."""
        found = interpreter.problems(self.python)
        if any(p.final for p in found) or (found and not force):
            texts = [p.text for p in found if p.final or not force]
            hint = "" if any(p.final for p in found) else "\n(--force installs it all the same.)"
            raise ServiceFailed("not installed: " + "\nand: ".join(texts) + hint)

    def watch(self) -> Watch:
        return Watch(self.paths.state, ask_health, self.machine.clock)

    def installed(self) -> Supervisor:
        return machine.installed_supervisor(
            self.machine, control.installed_domain(self.paths.state), system=self.arguments.system
        )

    def all_supervisors(self) -> tuple[Supervisor, ...]:
        """All supervisors that may have the job, to remove it from each."""
        main = self.installed()
        return (main, *machine.other_places(self.machine, main))

    def purge_paths(self) -> PurgePaths:
        usual = [standard_paths(self.home, None).config_file]
        if self.home is None and (folder := self.carried.get("XDG_CONFIG_HOME")):
            usual.append(Path(folder) / APP / usual[0].name)
        return PurgePaths(
            config_file=self.paths.config_file if self.paths.config_file in usual else None,
            state=self.paths.state,
            cache=self.paths.cache,
            logs=self.paths.logs,
            home=self.home,
        )


def context(arguments: argparse.Namespace, environ: Mapping[str, str], here: Machine) -> Context:
    """From flags and environment, and for the rest from the definition of the installed service.

    Raises ConfigError for the home of an unknown ``~NAME``, and for a path with control characters.
    """
    home = _path(arguments.home or environ.get("OMLXD_HOME"))
    config = _path(arguments.config or environ.get("OMLXD_CONFIG"))
    definition = machine.definition(here, system=arguments.system)
    if definition is not None and home is None:
        home = definition.home
        config = config or definition.config_file
    if home is None and arguments.system:
        home = machine.SYSTEM_HOME
    carried = carried_environment(environ, linux=here.platform == "linux")
    # Only an installation may move the service to the folders of this shell.
    moves = getattr(arguments, "verb", None) == "install" and any(map(_is_place, carried))
    if home is None and definition is not None and not moves:
        found = service_paths(definition, config)
        kept = {name: value for name, value in definition.environment.items() if _is_place(name)}
        carried = {name: value for name, value in carried.items() if not _is_place(name)} | kept
    else:
        found = standard_paths(home, config)
    return Context(
        arguments=arguments,
        environ=environ,
        machine=here,
        paths=found,
        home=home,
        config_file=config,
        python=interpreter.current_interpreter(environ),
        definition=definition,
        carried=carried,
    )


def _is_place(variable: str) -> bool:
    return variable.startswith("XDG_")


def _path(named: str | None) -> Path | None:
    if named and is_odd(named):
        raise ConfigError([f"{named!r}: a path with a character that cannot be used here"])
    return absolute(Path(named)) if named else None


def _account(arguments: argparse.Namespace) -> Account | None:
    name = getattr(arguments, "user", None)
    if not arguments.system:
        if name is not None:
            raise ServiceFailed("--user is for --system; without it the service is your own")
        return None
    if name is None:
        raise ServiceFailed("--system needs --user NAME: the account the daemon runs as, not root")
    return machine.account(name)
