"""MLX behind the backend interface: its import, its failures, its start and end.

Importing this file imports nothing heavy.
"""

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omlxd.backend.model_files import check_model_files
from omlxd.backend.protocol import BackendInfo, BackendOptions, ModelLoad
from omlxd.errors import EngineDied
from omlxd.policy.readings import AllocatorSample

if TYPE_CHECKING:
    from omlxd.backend.mlx.runtime import Runtime

_REFUSED_FOR_GOOD = "SubmissionsIgnored"
"""From kIOGPUCommandBufferCallbackErrorSubmissionsIgnored: after earlier faults the GPU driver
takes no more work from this process."""
_LONGEST_REASON = 500
"""Characters. The runtime names every tensor that is missing."""

_import_lock = threading.Lock()


class MlxBackend:
    """All methods but the constructor belong to the device thread."""

    def __init__(self, options: BackendOptions, *, wired_limit: int | None = None) -> None:
        """``wired_limit``: bytes the GPU driver may keep resident; None leaves the limit alone."""
        self._options = options
        self._wired_limit = wired_limit
        self._started: Runtime | None = None

    def start(self) -> BackendInfo:
        """Import MLX and mlx-lm here. Raises ImportError, or RuntimeError for a version of mlx-lm
        that lacks what this code uses."""
        import_mlx_lm()
        from omlxd.backend.mlx.runtime import Runtime

        self._started = Runtime(self._options.pool_limit, self._wired_limit)
        return self._started.info

    def begin_load(self, path: str) -> ModelLoad:
        from omlxd.backend.mlx.load import MlxLoad

        return MlxLoad(check_model_files(Path(path)), self._options.load_piece)

    def sample(self, now: float) -> AllocatorSample:
        return self._runtime.sample(now)

    def reclaim(self) -> int:
        return self._runtime.reclaim()

    def stop(self) -> None:
        if self._started is not None:
            runtime, self._started = self._started, None
            runtime.stop()

    @property
    def _runtime(self) -> "Runtime":
        if self._started is None:
            raise RuntimeError("start() comes first")
        return self._started


def import_mlx_lm() -> None:
    """Import mlx_lm. On every thread, its first import goes through here.

    ``mlx_lm.utils`` lowers RLIMIT_NOFILE to (2048, 4096) when it is imported. A process without
    privileges cannot raise a hard limit again, so the call is suppressed.
    """
    # A pool of threads does not help with one prompt at a time, and it warns at each fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with _import_lock, _file_limit_kept():
        import mlx_lm  # noqa: F401


@contextmanager
def _file_limit_kept() -> Iterator[None]:
    setrlimit = resource.setrlimit

    def refuse_file_limit(which: int, limits: Any) -> None:
        if which != resource.RLIMIT_NOFILE:
            setrlimit(which, limits)

    resource.setrlimit = refuse_file_limit
    try:
        yield
    finally:
        resource.setrlimit = setrlimit


def reason_of(error: Exception) -> str:
    """``error`` in one line without a full stop, for use inside a sentence."""
    said = " ".join(str(error).split())[:_LONGEST_REASON].rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def raise_if_device_lost(error: BaseException) -> None:
    """Raises EngineDied when ``error`` means that every later step will fail too."""
    if _REFUSED_FOR_GOOD in str(error):
        raise EngineDied(f"The GPU refuses all further work from this process: {error}")
