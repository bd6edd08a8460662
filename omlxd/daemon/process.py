"""What one run of the daemon is, and what the process around it gives it."""

import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TextIO

from omlxd import __version__

SPARE_FILES: Final = 512
"""Open files for models, caches, logs and libraries, beside the connections."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One run of the daemon.

    Attributes:
        port: the real one, where the configuration says 0.
        since: when it began to listen, on ``continuous_clock``.
    """

    id: str
    host: str
    port: int
    since: float
    version: str = __version__

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def _same(code: int) -> int:
    return code


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ProcessHooks:
    """Attributes:
    log: where the log goes; None is stderr.
    before_exit: called with the exit code before the process ends without unwinding. Returns
        the code to end with.
    stop_asked: whether somebody asked for a stop before the daemon listened for it.
    """

    log: TextIO | None = None
    before_exit: Callable[[int], int] = _same
    stop_asked: Callable[[], bool] = _never


def raise_file_limit(connections: int) -> int:
    """Allow open files for ``connections`` and the rest, as far as the hard limit permits.

    Returns the limit in force, and never lowers it. A login on macOS gives a process 256 files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    wanted = connections + SPARE_FILES
    if hard != infinite:
        wanted = min(wanted, hard)
    if soft == infinite or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS has a third limit, which it does not tell here
        return soft
    return wanted
