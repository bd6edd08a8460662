"""What to do next after a ``launchctl`` call, as pure functions of its exit code."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from omlxd.service.launchctl import Code

BOOTSTRAP_DELAYS: Final = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each further try of ``bootstrap``."""


class Presence(Enum):
    """What ``print`` says of a job or a domain."""

    LOADED = "loaded"
    NOT_LOADED = "not loaded"
    NO_DOMAIN = "no domain"
    UNCLEAR = "unclear"


def presence(code: int | None) -> Presence:
    match code:
        case Code.OK:
            return Presence.LOADED
        case Code.NOT_FOUND:
            return Presence.NOT_LOADED
        case Code.NO_DOMAIN | Code.DOMAIN_UNSUPPORTED:
            return Presence.NO_DOMAIN
        case _:
            return Presence.UNCLEAR


def bootout_is_under_way(code: int | None) -> bool:
    """Whether to wait for the job to go; anything else is a refusal to report.

    3, 113 and 112 say that there is nothing to stop, 37 that another stop runs already, and 5
    may be said of a job that is draining.
    """
    return code in (
        Code.OK,
        Code.NO_PROCESS,
        Code.IO_ERROR,
        Code.IN_PROGRESS,
        Code.NO_DOMAIN,
        Code.NOT_FOUND,
        Code.DOMAIN_UNSUPPORTED,
    )


@dataclass(frozen=True, slots=True)
class Done:
    """The job is loaded."""


@dataclass(frozen=True, slots=True)
class Again:
    """Wait, make sure that nothing of the label is left, enable it, and try once more."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    pass


AfterBootstrap = Done | Again | GiveUp


def after_bootstrap(code: int | None, tries: int, *, loaded: bool) -> AfterBootstrap:
    """``tries``: how many bootstraps were made; ``loaded``: whether ``print`` finds the job now.

    37 with the job there is launchd's way to say that it arrived. 5 and 17 with a job there may
    be the old definition, still draining, so it is cleared away before the next try.
    """
    if code == Code.OK or (code == Code.IN_PROGRESS and loaded):
        return Done()
    passing = code in (Code.IO_ERROR, Code.EXISTS, Code.IN_PROGRESS, Code.DISABLED)
    if passing and tries <= len(BOOTSTRAP_DELAYS):
        return Again(BOOTSTRAP_DELAYS[tries - 1])
    return GiveUp()


def ended_how(status: int) -> str:
    """A wait status of ``launchctl list`` in words."""
    if status == 0:
        return "exit code 0"
    if status < 256:
        return f"signal {abs(status)}"
    code = status >> 8
    if code == 78:
        return (
            "exit code 78 before it could start: launchd could not open the log files or enter "
            "the state folder (missing, not writable, or on an external volume)"
        )
    return f"exit code {code}"


def explain(code: int | None, domain: str) -> str:
    """What a failed ``launchctl`` call means for the person who made it, and what to try."""
    match code:
        case Code.IO_ERROR:
            return (
                "launchd does not say why (its code 5). Usual reasons: the property list is not "
                "yours or others may write to it; a path in it is on an external volume; the job "
                "was switched off under System Settings > General > Login Items. Its own words: "
                "log show --last 2m --predicate 'process == \"launchd\"'"
            )
        case Code.NO_DOMAIN | Code.DOMAIN_UNSUPPORTED:
            return (
                f"there is no domain {domain}: nobody with this account is logged in there. Log in "
                "at the screen, or install a daemon that needs no login: "
                "sudo omlxd service install --system --user NAME"
            )
        case Code.DISABLED:
            return (
                "the job is switched off: allow it under System Settings > General > Login Items "
                "& Extensions, then run this again"
            )
        case Code.IN_PROGRESS | Code.EXISTS:
            return "another copy of the job is still there; wait half a minute and run this again"
        case Code.NOT_FOUND | Code.NO_PROCESS:
            return "the job is not loaded; run `omlxd service install`"
        case Code.USAGE:
            return "this launchctl does not know the call; please report it with your macOS version"
        case None:
            return "launchctl did not return in time or could not be started"
        case _:
            return f"`launchctl error {code}` tells what {code} means"
