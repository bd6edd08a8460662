"""The engine of one loaded model: a scheduler that plans, and an executor of its plans."""

from dataclasses import dataclass
from typing import assert_never

import structlog

from omlxd.backend.plan import StepPlan, StepResult, step_failure
from omlxd.backend.protocol import Batch, EngineKind, LoadedModel
from omlxd.engine.messages import ModelInfo
from omlxd.engine.options import EngineOptions
from omlxd.engine.scheduler import Scheduler
from omlxd.errors import EngineDied
from omlxd.policy.ceiling import Limits

log = structlog.get_logger(__name__)


class BatchExecutor:
    """Executes plans on a batch in this process. The batch exists while it has sequences."""

    def __init__(self, model_id: str, model: LoadedModel, options: EngineOptions) -> None:
        self._model_id = model_id
        self._model = model
        self._options = options
        self._batch: Batch | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        """A step that raises loses the batch. Raises EngineDied when the device is lost."""
        try:
            if self._batch is None:
                self._batch = self._model.new_batch(
                    max_sequences=self._options.max_concurrent,
                    max_prefills=min(self._options.max_prefills, self._options.max_concurrent),
                )
            return self._batch.execute(plan)
        except EngineDied:
            raise
        except Exception as error:  # the requests in the step fail, the thread goes on
            requests = len(plan.decode) + len(plan.prefill)
            log.exception("step_failed", model=self._model_id, requests=requests)
            self.drop_batch()
            return StepResult(lost=step_failure(error))

    def drop_batch(self) -> None:
        """An idle model keeps no batch: its last logits alone are megabytes."""
        if self._batch is not None:
            batch, self._batch = self._batch, None
            batch.close()

    def close(self) -> None:
        """Drop the model and everything that refers to its arrays."""
        self.drop_batch()
        self._model.close()


@dataclass(frozen=True, slots=True)
class ModelEngine:
    """What the device thread holds of a loaded model."""

    info: ModelInfo
    scheduler: Scheduler
    executor: BatchExecutor


def model_engine(
    model_id: str, model: LoadedModel, options: EngineOptions, limits: Limits
) -> ModelEngine:
    """The engine for a model of this kind. Only this function knows all kinds."""
    match model.engine_kind:
        case EngineKind.GENERATE:
            return ModelEngine(
                ModelInfo(model.weights_bytes, model.vocab_size, model.cache_kinds),
                Scheduler(model_id, options, limits),
                BatchExecutor(model_id, model, options),
            )
        case unreachable:
            assert_never(unreachable)
