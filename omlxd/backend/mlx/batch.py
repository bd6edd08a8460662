"""The running batch of one model: sequences in and out of mlx-lm's BatchGenerator."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_lm.generate import BatchGenerator, StopSequences

from omlxd.backend.mlx.failures import raise_if_device_lost
from omlxd.backend.mlx.logprobs import TokenLogprobs, token_logprobs
from omlxd.backend.mlx.sampling import (
    GreedySampler,
    LogitsProcessor,
    SamplerCache,
    TokenSampler,
    check_sampling,
    logits_processors,
)
from omlxd.backend.protocol import BatchStep
from omlxd.backend.sequence import FinishReason, NewToken, SequenceSpec
from omlxd.errors import InvalidRequest

LARGEST_CHUNK = 16_384
"""Prompt tokens of one sequence in one chunk; mlx-lm would cut a larger one by itself."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One sequence in the batch; ``uid`` is mlx-lm's name for it."""

    id: str
    uid: int
    top_logprobs: int | None
    sampler: TokenSampler | GreedySampler
    processors: tuple[LogitsProcessor, ...]

    @property
    def failure(self) -> str | None:
        reasons = (self.sampler.failure, *(p.failure for p in self.processors))
        return next((r for r in reasons if r is not None), None)


class MlxBatch:
    """Answers to ``backend.protocol.Batch``."""

    def __init__(
        self,
        model: Any,
        vocab_size: int,
        samplers: SamplerCache,
        *,
        max_sequences: int,
        max_prefills: int,
    ) -> None:
        self._vocab_size = vocab_size
        self._samplers = samplers
        self._rows: dict[int, _Row] = {}
        self._uids: dict[str, int] = {}
        self._decoding: set[int] = set()
        self._stops: dict[frozenset[int], StopSequences] = {}
        self._generator: Any = BatchGenerator(
            model,
            completion_batch_size=max_sequences,
            prefill_batch_size=min(max_prefills, max_sequences),
            prefill_step_size=LARGEST_CHUNK,
        )

    def insert(self, sequence: SequenceSpec) -> None:
        self._check(sequence)
        sampler = self._samplers.sampler(sequence.sampling)
        processors = logits_processors(sequence.sampling, len(sequence.prompt))
        (uid,) = self._generator.insert_segments(
            [[list(sequence.prompt)]],
            max_tokens=[sequence.max_tokens],
            samplers=[sampler],
            logits_processors=[processors],
            stop_sequences=[self._stop_sequences(sequence.stop_tokens)],
        )
        self._rows[uid] = _Row(sequence.id, uid, sequence.top_logprobs, sampler, tuple(processors))
        self._uids[sequence.id] = uid

    def step(self, prefill_chunk: int) -> BatchStep:
        self._generator.prefill_step_size = max(1, min(prefill_chunk, LARGEST_CHUNK))
        try:
            prompts, answers = self._generator.next()
            tokens = self._new_tokens(answers)
        except RuntimeError as error:
            raise_if_device_lost(error)
            raise
        prefilled = []
        for prompt in prompts:
            if prompt.end_of_prompt:
                self._decoding.add(prompt.uid)
            done, total = prompt.progress
            prefilled.append((self._rows[prompt.uid].id, done, total))
        return self._settled(prefilled, tokens)

    def remove(self, ids: Sequence[str]) -> None:
        uids = [self._uids[i] for i in ids if i in self._uids]
        if uids:
            self._generator.remove(uids)
        self._forget(uids)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def decoding(self) -> int:
        return len(self._decoding)

    @property
    def cache_bytes(self) -> int:
        return int(self._generator.prompt_cache_nbytes) if self._rows else 0

    def close(self) -> None:
        self._forget(list(self._rows))
        self._generator = None

    def _check(self, sequence: SequenceSpec) -> None:
        if not sequence.prompt:
            raise InvalidRequest("The prompt has no tokens.", param="prompt")
        if max(sequence.prompt) >= self._vocab_size or min(sequence.prompt) < 0:
            raise InvalidRequest(
                f"A prompt token is outside this model's 0 to {self._vocab_size - 1}.",
                param="prompt",
            )
        if sequence.max_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1.", param="max_tokens")
        check_sampling(sequence.sampling, self._vocab_size)

    def _stop_sequences(self, tokens: frozenset[int]) -> StopSequences:
        if tokens not in self._stops:
            if len(self._stops) >= 64:
                self._stops.clear()
            self._stops[tokens] = StopSequences([[t] for t in sorted(tokens)])
        return self._stops[tokens]

    def _new_tokens(self, answers: Sequence[Any]) -> list[tuple[_Row, NewToken]]:
        asked = [(a, n) for a in answers if (n := self._rows[a.uid].top_logprobs) is not None]
        found = token_logprobs(
            [a.logprobs for a, _ in asked], [a.token for a, _ in asked], [n for _, n in asked]
        )
        logprobs = {a.uid: found_one for (a, _), found_one in zip(asked, found, strict=True)}
        return [(self._rows[a.uid], _new_token(a, logprobs.get(a.uid))) for a in answers]

    def _settled(
        self, prefilled: list[tuple[str, int, int]], tokens: Iterable[tuple[_Row, NewToken]]
    ) -> BatchStep:
        """The step's result, without the rows that finished or failed in it."""
        tokens = list(tokens)
        self._forget([row.uid for row, token in tokens if token.finish is not None])
        failures = {row.id: why for row in self._rows.values() if (why := row.failure) is not None}
        self.remove(list(failures))
        return BatchStep(
            prefilled=tuple(p for p in prefilled if p[0] not in failures),
            tokens=tuple((row.id, t) for row, t in tokens if row.id not in failures),
            failed=tuple(failures.items()),
        )

    def _forget(self, uids: Iterable[int]) -> None:
        for uid in uids:
            row = self._rows.pop(uid)
            del self._uids[row.id]
            self._decoding.discard(uid)


def _new_token(answer: Any, logprobs: TokenLogprobs | None) -> NewToken:
    finish = None if answer.finish_reason is None else FinishReason(answer.finish_reason)
    if logprobs is None:
        return NewToken(answer.token, finish=finish)
    return NewToken(answer.token, logprobs.chosen, logprobs.top, finish)
