"""MLX behind the backend seam; importing this file imports nothing heavy."""

from pathlib import Path
from typing import TYPE_CHECKING

from omlxd.backend.mlx.imports import import_mlx_lm
from omlxd.backend.model_files import check_model_files
from omlxd.backend.protocol import BackendInfo, BackendOptions, ModelLoad
from omlxd.policy.readings import AllocatorSample

if TYPE_CHECKING:
    from omlxd.backend.mlx.runtime import Runtime


class MlxBackend:
    """All methods but the constructor belong to the device thread."""

    def __init__(self, options: BackendOptions, *, wired_limit: int | None = None) -> None:
        """``wired_limit``: bytes the GPU driver may keep resident; None leaves that alone."""
        self._options = options
        self._wired_limit = wired_limit
        self._started: Runtime | None = None

    def start(self) -> BackendInfo:
        """Import MLX and mlx-lm here. Raises ImportError, or RuntimeError for an mlx-lm whose
        insides are not those this was written for."""
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
