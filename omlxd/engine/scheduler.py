"""The scheduler of one model: which sequences wait, join, run and leave, step by step.

It does not touch the device: ``schedule`` gives the plan of the next step, and ``update`` takes
the result.
"""

import math
from collections import deque
from dataclasses import dataclass

from omlxd.backend.plan import EnteringSequence, Prefilled, StepPlan, StepResult
from omlxd.backend.sequence import NewToken
from omlxd.engine.messages import Event, RequestEnded, Stepped
from omlxd.engine.options import EngineOptions
from omlxd.errors import OmlxdError
from omlxd.policy.batching import admissible
from omlxd.policy.ceiling import Limits
from omlxd.policy.chunking import PrefillPace, StepBudget, chunk_tokens, observe


@dataclass(slots=True)
class _PromptProgress:
    """Tokens of a prompt, and how many of them are in the cache."""

    total: int
    done: int


class Scheduler:
    """Continuous batching: sequences may join and leave at every step."""

    def __init__(self, model_id: str, options: EngineOptions, limits: Limits) -> None:
        self.model_id = model_id
        self.limits = limits
        self._options = options
        self._waiting: deque[EnteringSequence] = deque()
        self._prefilling: dict[str, _PromptProgress] = {}
        self._decoding: dict[str, None] = {}
        self._leaving: dict[str, OmlxdError | None] = {}
        """Cancelled sequences that are still in the batch, each with the error of its end."""
        self._decode_plan: StepPlan | None = None
        """The plan of a step that only decodes, reused until a sequence joins or leaves."""
        self._pace = PrefillPace()
        self._cache_bytes = 0

    @property
    def has_work(self) -> bool:
        return bool(self._decoding or self._prefilling or self._waiting or self._leaving)

    @property
    def decoding(self) -> int:
        return len(self._decoding)

    @property
    def prefilling(self) -> int:
        """Sequences in prefill, and those that the next step would admit."""
        return len(self._prefilling) + self._admissible()

    @property
    def leaving(self) -> int:
        return len(self._leaving)

    @property
    def batched(self) -> int:
        """Sequences that hold a place in the batch."""
        return len(self._decoding) + len(self._prefilling) + len(self._leaving)

    def prefill_seconds(self, prompt_tokens: int) -> float:
        """Seconds that a prompt takes at the pace of earlier steps; infinite before the first."""
        pace = self._pace.tokens_per_second
        return math.inf if pace is None else prompt_tokens / pace

    def submit(self, sequence: EnteringSequence) -> Stepped:
        self._waiting.append(sequence)
        return self._stepped()

    def cancel(self, request_id: str, error: OmlxdError | None) -> tuple[Event, ...]:
        """End a request with ``error``; no effect on an unknown id.

        A waiting request ends at once, a running one when the next plan has removed it.
        """
        for sequence in self._waiting:
            if sequence.spec.id == request_id:
                self._waiting.remove(sequence)
                return (RequestEnded(request_id, error), self._stepped())
        if self._prefilling.pop(request_id, None) or self._stop_decoding(request_id):
            self._leaving[request_id] = error
        return ()

    def end_all(self, error: OmlxdError) -> tuple[RequestEnded, ...]:
        """End every request, also waiting ones, with ``error``. The batch must then be dropped."""
        waiting = [RequestEnded(s.spec.id, error.again()) for s in self._waiting]
        self._waiting.clear()
        return (*self._end_batch(error), *waiting)

    # One step

    def schedule_removal(self) -> StepPlan:
        """A plan that only removes cancelled sequences and computes nothing."""
        return StepPlan(leave=tuple(self._leaving))

    def schedule(self, budget: StepBudget) -> StepPlan:
        """Admit what may run, and plan a step within ``budget``."""
        enter = self._admit() if self._waiting else ()
        if not (self._prefilling or self._leaving):
            if self._decode_plan is None:
                self._decode_plan = StepPlan(decode=tuple(self._decoding))
            return self._decode_plan
        return StepPlan(
            leave=tuple(self._leaving),
            enter=enter,
            decode=tuple(self._decoding),
            prefill=self._chunks(budget),
        )

    def update(self, result: StepResult, seconds: float) -> tuple[Event, ...]:
        """Take note of the latest plan's ``result``, which took ``seconds``."""
        self._cache_bytes = result.cache_bytes
        if result.lost is not None:
            return (*self._end_batch(result.lost), self._stepped())
        if result.prefilled or result.tokens:
            self._observe(result, seconds)
        ended = [RequestEnded(i, self._leaving.pop(i)) for i in result.left if i in self._leaving]
        for request_id, token in result.tokens:
            if token.finish is not None:
                self._stop_decoding(request_id)
        for request_id, error in result.failed:
            if self._prefilling.pop(request_id, None) is None:
                self._stop_decoding(request_id)
            ended.append(RequestEnded(request_id, error))
        return (*ended, self._stepped(result.prefilled, result.tokens))

    def _admit(self) -> tuple[EnteringSequence, ...]:
        enter = tuple(self._waiting.popleft() for _ in range(self._admissible()))
        for sequence in enter:
            progress = _PromptProgress(sequence.prefill_tokens, sequence.cached_tokens)
            self._prefilling[sequence.spec.id] = progress
        return enter

    def _admissible(self) -> int:
        if not self._waiting:
            return 0
        return admissible(
            waiting=len(self._waiting),
            running=len(self._decoding) + len(self._prefilling),
            max_concurrent=self._options.max_concurrent,
            paused=self.limits.admission_paused,
        )

    def _chunks(self, budget: StepBudget) -> tuple[tuple[str, int], ...]:
        """(id, prompt tokens) of the sequences whose turn it is to prefill."""
        first = list(self._prefilling.items())[: self._options.max_prefills]
        left = {request_id: prompt.total - prompt.done for request_id, prompt in first}
        chunk = chunk_tokens(
            self._pace,
            budget,
            sequences=len(left),
            longest_left=max(left.values(), default=0) - 1,
            decoding=bool(self._decoding),
            largest=self._options.prefill_chunk,
        )
        return tuple((request_id, min(chunk, tokens)) for request_id, tokens in left.items())

    def _observe(self, result: StepResult, seconds: float) -> None:
        prefilled = ends = 0
        for progress in result.prefilled:
            prompt = self._prefilling[progress.request_id]
            if progress.done < progress.total:
                prefilled += progress.done - prompt.done
                prompt.done = progress.done
                continue
            ends = 1
            del self._prefilling[progress.request_id]
            self._decoding[progress.request_id] = None
            self._decode_plan = None
        passes = ends + bool(result.tokens)
        self._pace = observe(self._pace, prefilled=prefilled, decode_passes=passes, seconds=seconds)

    def _stop_decoding(self, request_id: str) -> bool:
        if request_id not in self._decoding:
            return False
        del self._decoding[request_id]
        self._decode_plan = None
        return True

    def _end_batch(self, error: OmlxdError) -> list[RequestEnded]:
        running = (*self._decoding, *self._prefilling)
        ended = [RequestEnded(request_id, error.again()) for request_id in running]
        ended += [RequestEnded(request_id, own) for request_id, own in self._leaving.items()]
        for table in (self._decoding, self._prefilling, self._leaving):
            table.clear()
        self._decode_plan = None
        self._cache_bytes = 0
        return ended

    def _stepped(
        self,
        prefilled: tuple[Prefilled, ...] = (),
        tokens: tuple[tuple[str, NewToken], ...] = (),
    ) -> Stepped:
        return Stepped(
            model_id=self.model_id,
            prefilled=prefilled,
            tokens=tokens,
            running=len(self._decoding) + len(self._prefilling),
            waiting=len(self._waiting),
            cache_bytes=self._cache_bytes,
        )
