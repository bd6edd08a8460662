"""One model's queue and batch: who waits, who runs, and how much each step does."""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from omlxd.backend.protocol import Batch, BatchStep, LoadedModel
from omlxd.backend.sequence import NewToken, SequenceSpec
from omlxd.engine.messages import ModelInfo, Prefilled, RequestEnded, Stepped
from omlxd.engine.options import EngineOptions
from omlxd.errors import EngineDied, GenerationFailed, OmlxdError
from omlxd.policy.ceiling import Limits
from omlxd.policy.chunking import PrefillPace, StepBudget, chunk_tokens, observe
from omlxd.policy.pressure import request_may_start

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step did, and which requests ended in it other than by their last token."""

    stepped: Stepped
    ended: tuple[RequestEnded, ...] = ()
    batch_lost: bool = False
    """A step raised and took the batch with it."""


@dataclass(slots=True)
class _Prompt:
    """Tokens of a running request's prompt, and how many of them are in its cache."""

    total: int
    done: int = 0


class Scheduler:
    """Lives on the device thread, like the model it feeds; every call is a step boundary."""

    def __init__(
        self,
        model_id: str,
        model: LoadedModel,
        options: EngineOptions,
        clock: Callable[[], float],
        limits: Limits,
    ) -> None:
        self.model_id = model_id
        self.limits = limits
        self._model = model
        self._options = options
        self._clock = clock
        self._waiting: deque[SequenceSpec] = deque()
        self._running: dict[str, _Prompt] = {}
        self._batch: Batch | None = None
        self._pace = PrefillPace()

    @property
    def info(self) -> ModelInfo:
        model = self._model
        return ModelInfo(model.weights_bytes, model.vocab_size, model.cache_kinds)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def decoding(self) -> int:
        return 0 if self._batch is None else self._batch.decoding

    @property
    def prefilling(self) -> int:
        """Sequences in prefill, those that the next step would admit included."""
        return len(self._running) - self.decoding + self._admissible()

    def prefill_seconds(self, prompt_tokens: int) -> float:
        """What a prompt takes, going by the steps so far; infinite before the first."""
        pace = self._pace.tokens_per_second
        return math.inf if pace is None else prompt_tokens / pace

    def submit(self, sequence: SequenceSpec) -> None:
        self._waiting.append(sequence)

    def cancel(self, request_id: str, error: OmlxdError | None) -> tuple[RequestEnded, ...]:
        """End a request, whatever its phase, with ``error``; nothing when the id is not here."""
        if self._running.pop(request_id, None) is not None:
            ended = RequestEnded(request_id, error)
            return (ended, *self._remove(request_id))
        for sequence in self._waiting:
            if sequence.id == request_id:
                self._waiting.remove(sequence)
                return (RequestEnded(request_id, error),)
        return ()

    def report(self) -> Stepped:
        """The present counts, as a step that did nothing."""
        return self._stepped((), ())

    def step(self, budget: StepBudget) -> Outcome:
        """Admit what may run, then one step within ``budget``.

        A step that raises fails the requests in it and leaves an empty batch. Raises EngineDied
        when the device is lost.
        """
        refused = self._admit()
        if self._batch is None or not self._running:
            return Outcome(self.report(), refused)
        sequences = len(self._running) - self._batch.decoding
        chunk = chunk_tokens(
            self._pace,
            budget,
            sequences=sequences,
            longest_left=max(p.total - p.done for p in self._running.values()) - 1,
            decoding=self._batch.decoding > 0,
            largest=self._options.prefill_chunk,
        )
        return self._run(self._batch, chunk, refused)

    def end_all(self, error: OmlxdError) -> tuple[RequestEnded, ...]:
        """End every request, waiting ones too, with ``error``."""
        ids = [*self._running, *(s.id for s in self._waiting)]
        self._waiting.clear()
        self._drop_batch()
        return tuple(RequestEnded(i, error.again()) for i in ids)

    def close(self) -> None:
        """Drop the model and everything that refers to its arrays."""
        self._waiting.clear()
        self._drop_batch()
        self._model.close()

    def _admissible(self) -> int:
        paused, idle = self.limits.admission_paused, not self._running
        if not request_may_start(paused=paused, loaded=True, idle=idle, anything_loaded=True):
            return 0
        # The first one ends the idleness that let it pass.
        room = 1 if paused else self._options.max_concurrent - len(self._running)
        return min(len(self._waiting), room)

    def _admit(self) -> tuple[RequestEnded, ...]:
        refused = []
        while self._admissible() > 0:
            sequence = self._waiting.popleft()
            error = self._insert(sequence)
            if error is None:
                self._running[sequence.id] = _Prompt(len(sequence.prompt))
            else:
                refused.append(RequestEnded(sequence.id, error))
        return tuple(refused)

    def _insert(self, sequence: SequenceSpec) -> OmlxdError | None:
        try:
            if self._batch is None:
                self._batch = self._model.new_batch(
                    max_sequences=self._options.max_concurrent,
                    max_prefills=min(self._options.max_prefills, self._options.max_concurrent),
                )
            self._batch.insert(sequence)
        except OmlxdError as error:
            return error.again()
        except Exception as error:  # a request that cannot start fails alone
            log.exception("request_insert_failed", model=self.model_id, request=sequence.id)
            return _failed(error)
        return None

    def _remove(self, request_id: str) -> tuple[RequestEnded, ...]:
        if self._batch is None:
            return ()
        try:
            self._batch.remove([request_id])
        except Exception as error:  # a batch that cannot shrink is a failed step
            log.exception("remove_failed", model=self.model_id, requests=len(self._running))
            return self._fail_running(error)
        if not self._running:
            self._drop_batch()
        return ()

    def _run(self, batch: Batch, chunk: int, refused: tuple[RequestEnded, ...]) -> Outcome:
        started = self._clock()
        try:
            step = batch.step(chunk)
        except EngineDied:
            raise
        except Exception as error:  # the step's requests fail, the thread goes on
            log.exception("step_failed", model=self.model_id, requests=len(self._running))
            lost = self._fail_running(error)
            return Outcome(self.report(), (*refused, *lost), batch_lost=True)
        self._observe(step, self._clock() - started)
        self._note_ends(step)
        prefilled = (Prefilled(i, done, total) for i, done, total in step.prefilled)
        ended = (RequestEnded(i, GenerationFailed(why)) for i, why in step.failed)
        return Outcome(self._stepped(prefilled, step.tokens), (*refused, *ended))

    def _observe(self, step: BatchStep, seconds: float) -> None:
        prefilled = ends = 0
        for request_id, done, total in step.prefilled:
            if done >= total:
                ends = 1
            else:
                prefilled += done - self._running[request_id].done
            self._running[request_id].done = done
        passes = ends + bool(step.tokens)
        self._pace = observe(self._pace, prefilled=prefilled, decode_passes=passes, seconds=seconds)

    def _note_ends(self, step: BatchStep) -> None:
        for request_id, token in step.tokens:
            if token.finish is not None:
                del self._running[request_id]
        for request_id, _ in step.failed:
            del self._running[request_id]
        if not self._running:
            self._drop_batch()

    def _fail_running(self, error: Exception) -> tuple[RequestEnded, ...]:
        ended = tuple(RequestEnded(i, _failed(error)) for i in self._running)
        self._drop_batch()
        return ended

    def _drop_batch(self) -> None:
        # An idle model keeps no batch: its last logits alone are megabytes.
        self._running.clear()
        if self._batch is not None:
            batch, self._batch = self._batch, None
            batch.close()

    def _stepped(
        self, prefilled: Iterable[Prefilled], tokens: tuple[tuple[str, NewToken], ...]
    ) -> Stepped:
        return Stepped(
            model_id=self.model_id,
            prefilled=tuple(prefilled),
            tokens=tokens,
            running=len(self._running),
            waiting=len(self._waiting),
            cache_bytes=0 if self._batch is None else self._batch.cache_bytes,
        )


def _failed(error: Exception) -> GenerationFailed:
    return GenerationFailed(
        f"A step of the model failed ({type(error).__name__}: {error}). "
        "Only the requests in it are affected; trying again is safe."
    )
