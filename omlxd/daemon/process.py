"""One run of the daemon, and the hooks that its process provides."""

import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TextIO

from omlxd import __version__

SPARE_FILES: Final = 512
"""Open files for models, caches, logs and libraries, in addition to the connections."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One run of the daemon.

    Attributes:
        port: the real port, even if the configuration says 0.
        since: the time when it began to listen, on ``continuous_clock``.
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
    log: the stream of the log; None is stderr.
    before_exit: called with the exit code before the process ends without unwinding. Returns
        the exit code to use.
    stop_asked: whether a stop was requested before the daemon listened for it.
    """

    log: TextIO | None = None
    before_exit: Callable[[int], int] = _same
    stop_asked: Callable[[], bool] = _never


def raise_file_limit(connections: int) -> int:
    """Allow open files for ``connections`` and ``SPARE_FILES``, up to the hard limit.

    Returns the limit in force; never lowers it. On macOS a process starts with 256 files.
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
    except (OSError, ValueError):  # macOS has a third limit, which cannot be read here
        return soft
    return wanted
