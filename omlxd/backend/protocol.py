"""The seam to the runtime that executes models. Every method is called on the device thread only.

``backend/mlx`` implements it; tests implement it in plain Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from omlxd.backend.sequence import NewToken, SequenceSpec
from omlxd.policy.readings import AllocatorSample


@dataclass(frozen=True, slots=True)
class BatchStep:
    """What one step did: (id, prompt tokens done, of total), new tokens, sequences that failed."""

    prefilled: tuple[tuple[str, int, int], ...]
    tokens: tuple[tuple[str, NewToken], ...]
    """(id, token); a sequence whose token has ``finish`` set has left the batch."""
    failed: tuple[tuple[str, str], ...]
    """(id, reason); these have left the batch."""


class Batch(Protocol):
    """The running batch of one loaded model (continuous batching)."""

    def insert(self, sequence: SequenceSpec) -> None:
        """Queue ``sequence`` for prefill. Raises ``errors.InvalidRequest`` and inserts nothing."""

    def step(self, prefill_chunk: int) -> BatchStep:
        """One decode step for every running sequence, then at most one prefill chunk of
        ``prefill_chunk`` tokens for each sequence in prefill. Whatever it raises, the batch is
        unusable afterwards and must be dropped with ``close``; ``errors.EngineDied`` says that
        the device is lost to this process."""

    def remove(self, ids: Sequence[str]) -> None:
        """Drop sequences, whatever their phase; unknown ids are ignored."""

    def __len__(self) -> int:
        """Sequences in the batch, prefilling ones included."""

    @property
    def decoding(self) -> int:
        """Sequences past their prompt."""

    @property
    def cache_bytes(self) -> int: ...

    def close(self) -> None:
        """Drop every sequence and its cache. Never raises."""


class LoadedModel(Protocol):
    @property
    def weights_bytes(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def cache_kinds(self) -> tuple[str, ...]: ...

    def new_batch(self, *, max_sequences: int, max_prefills: int) -> Batch: ...

    def close(self) -> None:
        """Drop every reference to arrays; the caller reclaims afterwards."""


class ModelLoad(Protocol):
    """A load in progress, one piece at a time."""

    @property
    def total_bytes(self) -> int: ...

    @property
    def loaded_bytes(self) -> int: ...

    def advance(self) -> LoadedModel | None:
        """Do the next piece (some tens of milliseconds); the model once it was the last.

        Raises ``errors.ModelLoadFailed`` or ``errors.ModelBroken``.
        """

    def abandon(self) -> None:
        """Drop what was loaded; the caller reclaims afterwards."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """Sizes in bytes; ``None`` where the runtime has no such number."""

    name: str
    versions: tuple[tuple[str, str], ...]
    device_name: str
    recommended_working_set: int | None
    max_buffer_bytes: int | None
    memory_total: int | None
    own_memory: bool = False
    """The device has memory of its own (CUDA), which ``memory_total`` then is."""


class Backend(Protocol):
    def start(self) -> BackendInfo:
        """Import and configure the runtime on the calling thread."""

    def begin_load(self, path: str) -> ModelLoad:
        """Check the files in folder ``path``; nothing is read into memory yet.

        Raises ``errors.ModelBroken`` or ``errors.ModelLoadFailed``.
        """

    def sample(self, now: float) -> AllocatorSample: ...

    def reclaim(self) -> int:
        """Collect garbage, synchronise, clear the pool; bytes the pool gave back."""

    def stop(self) -> None:
        """The last call on this thread."""
