"""Which exit code an ending has, so that a supervisor restarts only what a restart can help.

launchd restarts every non-zero exit (KeepAlive, SuccessfulExit false). A mistake that stays
until somebody mends it would be started again every ten seconds, for ever; under a supervisor
it therefore ends with 0 and is recorded for ``omlxd service status``.
"""

from enum import Enum, IntEnum

from omlxd.errors import AlreadyRunning, ConfigError, PortTaken


class ExitCode(IntEnum):
    STOPPED = 0
    FAILED = 1
    RESTART = 75  # EX_TEMPFAIL of sysexits.h: try again
    CONFIG = 78  # EX_CONFIG of sysexits.h


class Ending(Enum):
    STOPPED = "stopped"
    """Asked to stop, and did."""
    CONFIG = "config"
    """The configuration is wrong."""
    BLOCKED = "blocked"
    """The port or the data folder is another process's."""
    LOOPING = "looping"
    """Started again and again, and never lived long."""
    BROKEN = "broken"
    """Anything else; a fresh process may do better."""


PERMANENT = frozenset({Ending.CONFIG, Ending.BLOCKED, Ending.LOOPING})


def ending_of(error: BaseException | None) -> Ending:
    """What kind of ending ``error`` is; None is a stop that was asked for."""
    match error:
        case None:
            return Ending.STOPPED
        case ConfigError():
            return Ending.CONFIG
        case PortTaken() | AlreadyRunning():
            return Ending.BLOCKED
        case _:
            return Ending.BROKEN


def exit_code(ending: Ending, *, supervised: bool) -> ExitCode:
    """The code to leave with; ``supervised`` says that launchd or systemd started us."""
    match ending:
        case Ending.STOPPED:
            return ExitCode.STOPPED
        case Ending.BROKEN:
            return ExitCode.RESTART
        case Ending.CONFIG:
            return ExitCode.STOPPED if supervised else ExitCode.CONFIG
        case Ending.BLOCKED | Ending.LOOPING:
            return ExitCode.STOPPED if supervised else ExitCode.FAILED
