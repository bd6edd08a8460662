"""A model from its folder into memory, piece by piece."""

import glob
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import structlog
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from omlxd.backend.mlx.backend import raise_if_device_lost, reason_of
from omlxd.backend.mlx.batch import KeptCache, MlxBatch
from omlxd.backend.mlx.sampling import SamplerCache
from omlxd.backend.model_files import ModelFiles, check_model_files
from omlxd.backend.protocol import EngineKind
from omlxd.errors import ModelLoadFailed, OmlxdError

log = structlog.get_logger(__name__)

_MODELS = "mlx_lm.models."


class MlxModel:
    """Implements ``backend.protocol.LoadedModel``."""

    engine_kind = EngineKind.GENERATE

    def __init__(self, model: Any) -> None:
        self._model = model
        self.weights_bytes = sum(a.nbytes for a in _arrays(model))
        caches = make_prompt_cache(model)
        self.cache_kinds = tuple(type(c).__name__ for c in caches)
        _check_batchable(caches)
        self.vocab_size = _logits_width(model, caches)
        self._samplers = SamplerCache(self.vocab_size)
        self._kept: dict[str, KeptCache] = {}

    def new_batch(self, *, max_sequences: int, max_prefills: int) -> MlxBatch:
        return MlxBatch(
            self._model,
            self._samplers,
            self._kept,
            max_sequences=max_sequences,
            max_prefills=max_prefills,
        )

    def close(self) -> None:
        self._model = None
        self._kept.clear()


class MlxLoad:
    """The first piece builds the model and reads no weights; each other piece reads some."""

    def __init__(self, files: ModelFiles, piece_bytes: int) -> None:
        self._files = files
        self._piece_bytes = piece_bytes
        self._model: Any = None
        self._pieces: deque[list[mx.array]] = deque()
        self.total_bytes = files.tensor_bytes
        self.loaded_bytes = 0

    def advance(self) -> MlxModel | None:
        building = self._model is None
        try:
            return self._advance()
        except OmlxdError:
            raise
        except Exception as error:  # the files of a model can make mlx-lm raise anything
            raise_if_device_lost(error)
            log.warning("model_load_failed", folder=str(self._files.folder), exc_info=True)
            failure = _failure(error, self._files.folder, building)
        # ``error`` is gone here. The frames of its traceback would keep the weights.
        self.abandon()
        # Raises for a file that was damaged after it was checked.
        check_model_files(self._files.folder)
        raise failure

    def abandon(self) -> None:
        self._model = None
        self._pieces.clear()
        self.loaded_bytes = 0

    def _advance(self) -> MlxModel | None:
        if self._model is None:
            self._build()
        elif self._pieces:
            piece = self._pieces.popleft()
            mx.eval(piece)
            self.loaded_bytes += sum(a.nbytes for a in piece)
        if self._pieces:
            return None
        model, self._model = self._model, None
        return MlxModel(model)

    def _build(self) -> None:
        with _plain_path(self._files.folder) as folder:
            # A Path and no remote code: nothing is downloaded and no code of the folder runs.
            try:
                self._model, _ = load_model(folder, lazy=True, trust_remote_code=False)
            finally:
                # Layers draw random weights. They are never computed, but each draw depends on
                # the draw before it, and that would keep 2 KB for each array.
                mx.eval(mx.random.state)
        arrays = _arrays(self._model)
        self.total_bytes = sum(a.nbytes for a in arrays)
        self._pieces = deque(_pieces(arrays, self._piece_bytes))


def _failure(error: Exception, folder: Path, building: bool) -> ModelLoadFailed:
    """The error names config.json only when the files of the folder can be the cause."""
    config = folder / "config.json"
    if isinstance(error.__cause__, ImportError):
        error = error.__cause__
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith(_MODELS):
        kind = (error.name or "").removeprefix(_MODELS)
        return ModelLoadFailed(
            f"{config}: mlx-lm does not support the model type {kind!r}.", file=str(config)
        )
    reason = reason_of(error)
    if not building or isinstance(error, OSError | ImportError):
        return ModelLoadFailed(f"The model in {folder} cannot be loaded ({reason}).")
    return ModelLoadFailed(
        f"The model in {folder} cannot be built from its config.json and weights ({reason}).",
        file=str(config),
    )


def _arrays(model: Any) -> list[mx.array]:
    return [array for _, array in tree_flatten(model.parameters())]


def _pieces(arrays: list[mx.array], size: int) -> Iterator[list[mx.array]]:
    """``arrays`` in order, in groups of about ``size`` bytes."""
    group: list[mx.array] = []
    held = 0
    for array in arrays:
        group.append(array)
        held += array.nbytes
        if held >= size:
            yield group
            group, held = [], 0
    if group:
        yield group


@contextmanager
def _plain_path(folder: Path) -> Iterator[Path]:
    """``folder`` under a path without glob characters, since mlx-lm looks for weights by glob."""
    if not glob.has_magic(str(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="omlxd-load-") as scratch:
        link = Path(scratch) / "model"
        link.symlink_to(folder.absolute(), target_is_directory=True)
        yield link


def _check_batchable(caches: list[Any]) -> None:
    """Every cache must be able to merge with others and to tell its size."""
    kinds = sorted({type(c).__name__ for c in caches if not hasattr(c, "merge")})
    if kinds:
        raise ModelLoadFailed(
            f"This model's cache ({', '.join(kinds)}) cannot be batched by mlx-lm, "
            "so it cannot be served."
        )
    for cache in caches:
        int(cache.nbytes)


def _logits_width(model: Any, caches: list[Any]) -> int:
    """The number of logits. This computes nothing, but it builds the whole graph once, so a config
    that does not fit its weights fails here."""
    return int(model(mx.array([[0]]), cache=caches).shape[-1])
