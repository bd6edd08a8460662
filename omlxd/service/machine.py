"""Finds the supervisor of this machine (launchd or systemd), and the place of our job in it."""

import os
import pwd
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from omlxd.errors import ServiceFailed
from omlxd.service import launchd, systemd
from omlxd.service.definition import (
    AGENTS,
    DAEMONS,
    UNITS,
    Definition,
    plist_template,
    read_definition,
    render_plist,
    system_definition,
    user_definition,
)
from omlxd.service.job import HOMEBREW_LABEL, LABEL, Account, JobSpec
from omlxd.service.launchctl import Launchctl, LoadState
from omlxd.service.launchd import Domain, Kind, LaunchdJob
from omlxd.service.supervisor import Clock, Supervisor
from omlxd.service.systemd import Systemctl, SystemdUnit

SYSTEM_HOME = Path("/Library/Application Support/omlxd")
"""The default of ``--home`` for a system daemon."""

NOT_SUPPORTED = (
    "services are supported on macOS (launchd) and on Linux with a systemd user session; here "
    "neither was found. Run `omlxd serve` under a supervisor of your own: it stays in the "
    "foreground, drains on SIGTERM, and leaves with 75 when a restart would help."
)


@dataclass(frozen=True, slots=True)
class Machine:
    """The parts of the operating system that the service commands use; tests make their own.

    Attributes:
        system_folder: the folder with the plists of the system domain.
    """

    platform: str
    uid: int
    user_home: Path
    launchctl: Launchctl
    systemctl: Systemctl
    systemd_booted: Callable[[], bool]
    clock: Clock
    system_folder: Path = DAEMONS


def this_machine() -> Machine:
    return Machine(
        platform=sys.platform,
        uid=os.getuid(),
        user_home=Path.home(),
        launchctl=Launchctl(),
        systemctl=Systemctl(),
        systemd_booted=lambda: Path("/run/systemd/system").is_dir(),
        clock=Clock(now=time.monotonic, sleep=time.sleep),
    )


def account(name: str) -> Account:
    """The user ``name``. Raises ServiceFailed when there is none, or it is root."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ServiceFailed(f"--user {name}: there is no such account") from None
    if entry.pw_uid == 0:
        raise ServiceFailed(f"--user {name}: the daemon never runs as root; name another account")
    return _account(entry)


def owner(path: Path) -> Account | None:
    """The account that owns ``path``; None when it is absent, or its owner has no name."""
    try:
        entry = pwd.getpwuid(path.stat().st_uid)
    except (OSError, KeyError):
        return None
    return _account(entry)


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))


def supervisor_to_install(machine: Machine, *, system: bool) -> Supervisor:
    """The place of a new installation. Raises ServiceFailed when no place can take it."""
    if machine.platform != "darwin":
        return _unit(machine, system=system)
    launchd.check_rights(machine.uid, system=system)
    homes = (machine.user_home, machine.user_home.resolve())
    if not system and any(home.is_relative_to("/Volumes") for home in homes):
        raise ServiceFailed(
            f"your home folder {machine.user_home} is on an external volume, from where launchd "
            "does not start jobs reliably. Install a daemon on the internal disk instead: "
            "sudo omlxd service install --system --user NAME"
        )
    load_state = machine.launchctl.load_state
    chosen = launchd.SYSTEM if system else launchd.choose_domain(machine.uid, load_state)
    if load_state(chosen.target(HOMEBREW_LABEL)) is LoadState.LOADED:
        raise ServiceFailed(
            "`brew services` runs omlxd already; use that, or `brew services stop omlxd` first: "
            "two services would fight for one port"
        )
    return _job(machine, chosen)


def other_places(machine: Machine, chosen: Supervisor) -> tuple[Supervisor, ...]:
    """The other places in which the same job of the same user could be loaded."""
    domain = launchd.parse_domain(chosen.domain)
    if domain is None or domain.uid is None:
        return ()
    return tuple(_job(machine, d) for d in launchd.user_domains(domain.uid) if d != domain)


def installed_supervisor(machine: Machine, recorded: str | None, *, system: bool) -> Supervisor:
    """The place where the job is loaded, else where it was or would be installed.

    ``recorded``: the domain in the install record. A job in one domain cannot be seen from another,
    so launchd is asked about each.
    """
    if machine.platform != "darwin":
        return _unit(machine, system=system)
    launchd.check_rights(machine.uid, system=system)
    if system:
        return _job(machine, launchd.SYSTEM)
    known = launchd.parse_domain(recorded) if recorded is not None else None
    candidates = sorted(launchd.user_domains(machine.uid), key=lambda domain: domain != known)
    load_state = machine.launchctl.load_state
    for domain in candidates:
        if load_state(domain.target(LABEL)) is LoadState.LOADED:
            return _job(machine, domain)
    if known is None or known not in candidates:
        known = launchd.choose_domain(machine.uid, load_state)
    return _job(machine, known)


def definition(machine: Machine, *, system: bool) -> Definition | None:
    """The content of the installed definition; None when there is none or it cannot be parsed."""
    if system and machine.platform == "darwin":
        return read_definition(system_definition(machine.system_folder))
    return read_definition(user_definition(machine.platform, machine.user_home))


def definition_of(job: JobSpec, supervisor: Supervisor) -> bytes:
    """The plist or unit file of ``job``. Raises ServiceFailed."""
    if supervisor.domain == systemd.DOMAIN:
        return systemd.render_unit(job)
    return render_plist(job, LABEL, plist_template())


def _job(machine: Machine, domain: Domain) -> LaunchdJob:
    folder = machine.system_folder if domain.kind is Kind.SYSTEM else machine.user_home / AGENTS
    return LaunchdJob(machine.launchctl, domain, LABEL, folder, machine.clock)


def _unit(machine: Machine, *, system: bool) -> SystemdUnit:
    if not systemd.is_usable(machine.systemctl, machine.systemd_booted):
        raise ServiceFailed(NOT_SUPPORTED)
    if system:
        raise ServiceFailed("--system is for macOS; on Linux the service is a user unit")
    return SystemdUnit(machine.systemctl, machine.user_home / UNITS)
