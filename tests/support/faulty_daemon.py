"""The daemon with a runtime that can be made to fail: ``python -m tests.support.faulty_daemon``.

While the file named by OMLXD_TEST_FAULT exists, every step of a model's batch raises an error with
the text of the file. If the runtime takes it for the end of the device, the device thread ends.
"""

import os
import sys
from pathlib import Path

import omlxd.daemon.parts as parts
from omlxd.__main__ import main
from omlxd.backend.mlx.backend import MlxBackend, raise_if_device_lost
from omlxd.backend.plan import StepPlan, StepResult
from omlxd.backend.protocol import Batch, EngineKind, LoadedModel, ModelLoad

FAULT = Path(os.environ.get("OMLXD_TEST_FAULT", "/nonexistent"))


class FaultyBatch:
    def __init__(self, real: Batch) -> None:
        self._real = real

    def execute(self, plan: StepPlan) -> StepResult:
        if (plan.decode or plan.prefill) and FAULT.exists():
            error = RuntimeError(f"[METAL] Command buffer execution failed: {FAULT.read_text()}")
            raise_if_device_lost(error)
            raise error
        return self._real.execute(plan)

    def close(self) -> None:
        self._real.close()


class FaultyModel:
    def __init__(self, real: LoadedModel) -> None:
        self._real = real

    @property
    def engine_kind(self) -> EngineKind:
        return self._real.engine_kind

    @property
    def weights_bytes(self) -> int:
        return self._real.weights_bytes

    @property
    def vocab_size(self) -> int:
        return self._real.vocab_size

    @property
    def cache_kinds(self) -> tuple[str, ...]:
        return self._real.cache_kinds

    def new_batch(self, *, max_sequences: int, max_prefills: int) -> Batch:
        real = self._real.new_batch(max_sequences=max_sequences, max_prefills=max_prefills)
        return FaultyBatch(real)

    def close(self) -> None:
        self._real.close()


class FaultyLoad:
    def __init__(self, real: ModelLoad) -> None:
        self._real = real

    @property
    def total_bytes(self) -> int:
        return self._real.total_bytes

    @property
    def loaded_bytes(self) -> int:
        return self._real.loaded_bytes

    def advance(self) -> LoadedModel | None:
        loaded = self._real.advance()
        return None if loaded is None else FaultyModel(loaded)

    def abandon(self) -> None:
        self._real.abandon()


class FaultyBackend(MlxBackend):
    def begin_load(self, path: str) -> ModelLoad:
        return FaultyLoad(super().begin_load(path))


if __name__ == "__main__":
    vars(parts)["MlxBackend"] = FaultyBackend
    sys.exit(main())
