"""Finds what supervises services on this machine, and where our job is."""

import os
import pwd
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from omlxd.errors import ServiceFailed
from omlxd.service import domains, plist, systemd
from omlxd.service.definition import AGENTS, DAEMONS, UNITS, Written, of_mac, of_user, read_file
from omlxd.service.domains import Domain, Kind
from omlxd.service.job import Account, JobSpec
from omlxd.service.launchctl import Launchctl
from omlxd.service.launchd_job import LaunchdJob
from omlxd.service.names import HOMEBREW_LABEL, LABEL
from omlxd.service.steps import Presence, presence
from omlxd.service.supervisor import Pace, Supervisor
from omlxd.service.systemd import Systemctl, SystemdUnit

SYSTEM_HOME = Path("/Library/Application Support/omlxd")
"""What a system daemon gets as ``--home`` unless told otherwise."""

NOT_SUPPORTED = (
    "services are supported on macOS (launchd) and on Linux with a systemd user session; here "
    "neither was found. Run `omlxd serve` under a supervisor of your own: it stays in the "
    "foreground, drains on SIGTERM, and leaves with 75 when a restart would help."
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the service commands need of the operating system; tests make their own.

    Attributes:
        system_folder: where plists of the system domain lie.
    """

    platform: str
    uid: int
    user_home: Path
    launchctl: Launchctl
    systemctl: Systemctl
    systemd_booted: Callable[[], bool]
    pace: Pace
    system_folder: Path = DAEMONS


def this_machine() -> Machine:
    return Machine(
        platform=sys.platform,
        uid=os.getuid(),
        user_home=Path.home(),
        launchctl=Launchctl(),
        systemctl=Systemctl(),
        systemd_booted=lambda: Path("/run/systemd/system").is_dir(),
        pace=Pace(now=time.monotonic, sleep=time.sleep),
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
    """Whose ``path`` is; None when it is absent, or nobody's that has a name."""
    try:
        entry = pwd.getpwuid(path.stat().st_uid)
    except (OSError, KeyError):
        return None
    return _account(entry)


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))


def supervisor_to_install(machine: Machine, *, system: bool) -> Supervisor:
    """Where a new installation goes. Raises ServiceFailed when there is no place for it."""
    if machine.platform != "darwin":
        return _unit(machine, system=system)
    domains.check_rights(machine.uid, system=system)
    homes = (machine.user_home, machine.user_home.resolve())
    if not system and any(home.is_relative_to("/Volumes") for home in homes):
        raise ServiceFailed(
            f"your home folder {machine.user_home} is on an external volume, from where launchd "
            "does not start jobs reliably. Install a daemon on the internal disk instead: "
            "sudo omlxd service install --system --user NAME"
        )
    look = _look(machine)
    chosen = domains.SYSTEM if system else domains.choose(machine.uid, look)
    if look(chosen.target(HOMEBREW_LABEL)) is Presence.LOADED:
        raise ServiceFailed(
            "`brew services` runs omlxd already; use that, or `brew services stop omlxd` first: "
            "two services would fight for one port"
        )
    return _job(machine, chosen)


def other_places(machine: Machine, chosen: Supervisor) -> tuple[Supervisor, ...]:
    """Where the same job of the same user could be loaded besides ``chosen``."""
    domain = domains.parse(chosen.domain)
    if domain is None or domain.uid is None:
        return ()
    return tuple(_job(machine, d) for d in domains.of_user(domain.uid) if d != domain)


def installed_supervisor(machine: Machine, remembered: str | None, *, system: bool) -> Supervisor:
    """Where the job is: loaded, else remembered, else where it would be installed.

    A job in one domain cannot be seen from another, so every candidate is asked.
    """
    if machine.platform != "darwin":
        return _unit(machine, system=system)
    domains.check_rights(machine.uid, system=system)
    if system:
        return _job(machine, domains.SYSTEM)
    known = domains.parse(remembered) if remembered is not None else None
    candidates = list(domains.of_user(machine.uid))
    if known in candidates:
        candidates.sort(key=lambda domain: domain != known)
    look = _look(machine)
    for domain in candidates:
        if look(domain.target(LABEL)) is Presence.LOADED:
            return _job(machine, domain)
    return _job(machine, known if known in candidates else domains.choose(machine.uid, look))


def written(machine: Machine, *, system: bool) -> Written | None:
    """What the installed definition says; None when none is there or it cannot be understood."""
    if system and machine.platform == "darwin":
        return read_file(of_mac(machine.system_folder))
    return read_file(of_user(machine.platform, machine.user_home))


def definition_of(job: JobSpec, supervisor: Supervisor) -> bytes:
    """The plist or unit file of ``job``. Raises ServiceFailed."""
    if supervisor.domain == systemd.DOMAIN:
        return systemd.render(job)
    return plist.render(job, LABEL, plist.template())


def _look(machine: Machine) -> Callable[[str], Presence]:
    return lambda target: presence(machine.launchctl.print(target).code)


def _job(machine: Machine, domain: Domain) -> LaunchdJob:
    folder = machine.system_folder if domain.kind is Kind.SYSTEM else machine.user_home / AGENTS
    return LaunchdJob(machine.launchctl, domain, LABEL, folder, machine.pace)


def _unit(machine: Machine, *, system: bool) -> SystemdUnit:
    if not systemd.is_usable(machine.systemctl, machine.systemd_booted):
        raise ServiceFailed(NOT_SUPPORTED)
    if system:
        raise ServiceFailed("--system is for macOS; on Linux the service is a user unit")
    return SystemdUnit(machine.systemctl, _unit_folder(machine))


def _unit_folder(machine: Machine) -> Path:
    return machine.user_home / UNITS
