"""The interface to the runtime that executes models. Only the device thread calls its methods.

``backend/mlx`` implements it; tests implement it in plain Python.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from omlxd.backend.plan import StepPlan, StepResult
from omlxd.options import Bytes, option
from omlxd.policy.readings import AllocatorSample


@dataclass(frozen=True, slots=True)
class BackendOptions:
    pool_limit: Bytes | None = option(
        None,
        "Freed memory that MLX may keep for reuse. None: 5 % of the machine's memory, at most "
        "2GB; without a GPU what MLX itself chooses.",
        low=0,
    )
    load_piece: Bytes = option(
        64 * 1024**2,
        "Weights read at a time while a model loads; running requests step in between.",
        low=1024**2,
    )


class Batch(Protocol):
    """The running batch of one loaded model (continuous batching)."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Execute ``plan``. A plan that neither decodes nor prefills computes nothing.

        A sequence that cannot join fails alone, with ``errors.InvalidRequest`` if its spec is
        wrong. After any exception the batch is unusable and must be dropped with ``close``;
        ``errors.EngineDied`` says that this process has lost the device.
        """

    def close(self) -> None:
        """Drop every sequence and its cache. Never raises."""


class EngineKind(Enum):
    """What a loaded model does. This decides which kind of engine serves it."""

    GENERATE = "generate"


class LoadedModel(Protocol):
    @property
    def engine_kind(self) -> EngineKind: ...

    @property
    def weights_bytes(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def cache_kinds(self) -> tuple[str, ...]: ...

    def new_batch(self, *, max_sequences: int, max_prefills: int) -> Batch:
        """Later batches of the model can use the states that this one saved."""

    def close(self) -> None:
        """Drop every reference to arrays, saved states too; the caller reclaims afterwards."""


class ModelLoad(Protocol):
    """A load in progress, one piece at a time."""

    @property
    def total_bytes(self) -> int: ...

    @property
    def loaded_bytes(self) -> int: ...

    def advance(self) -> LoadedModel | None:
        """Do the next piece, some tens of milliseconds. Returns the model after the last one.

        Raises ``errors.ModelLoadFailed`` or ``errors.ModelBroken``.
        """

    def abandon(self) -> None:
        """Drop the loaded pieces; the caller reclaims afterwards."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """Sizes in bytes; ``None`` if the runtime has no such number."""

    name: str
    versions: tuple[tuple[str, str], ...]
    device_name: str
    recommended_working_set: int | None
    max_buffer_bytes: int | None
    memory_total: int | None
    own_memory: bool = False
    """The device has its own memory (CUDA), and ``memory_total`` is the size of that."""


class Backend(Protocol):
    def start(self) -> BackendInfo:
        """Import and configure the runtime on the calling thread."""

    def begin_load(self, path: str) -> ModelLoad:
        """Check the files in folder ``path``; this reads no weights.

        Raises ``errors.ModelBroken`` or ``errors.ModelLoadFailed``.
        """

    def sample(self, now: float) -> AllocatorSample: ...

    def reclaim(self) -> int:
        """Collect garbage, synchronise, clear the buffer cache; returns the freed bytes."""

    def stop(self) -> None:
        """The last call on this thread."""
