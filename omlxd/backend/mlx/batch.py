"""The running batch of one model: puts sequences in mlx-lm's BatchGenerator and removes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import structlog
from mlx_lm.generate import BatchGenerator, StopSequences

from omlxd.backend.mlx.backend import raise_if_device_lost
from omlxd.backend.mlx.sampling import (
    GreedySampler,
    LogitsProcessor,
    SamplerCache,
    TokenLogprobs,
    TokenSampler,
    check_sampling,
    logits_processors,
    token_logprobs,
)
from omlxd.backend.plan import (
    EnteringSequence,
    Prefilled,
    SavedSequence,
    SequenceState,
    StepPlan,
    StepResult,
    step_failure,
)
from omlxd.backend.sequence import FinishReason, NewToken, SequenceSpec
from omlxd.errors import GenerationFailed, InvalidRequest, OmlxdError

log = structlog.get_logger(__name__)

LARGEST_CHUNK = 16_384
"""Prompt tokens of one sequence in one chunk; mlx-lm would cut a larger one by itself."""


@dataclass(frozen=True, slots=True)
class KeptCache:
    """The data of a ``SequenceState``: one cache for each layer, and the tokens in them."""

    layers: tuple[Any, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _BatchedSequence:
    """One sequence in the batch; ``uid`` is mlx-lm's name for it."""

    spec: SequenceSpec
    uid: int
    answer: tuple[int, ...]
    """Tokens that were generated before it joined."""
    cached: int
    """Tokens that were in its cache when it joined."""
    sampler: TokenSampler | GreedySampler
    processors: tuple[LogitsProcessor, ...]

    @property
    def failure(self) -> str | None:
        if self.sampler.failure is not None:
            return self.sampler.failure
        return next((p.failure for p in self.processors if p.failure is not None), None)


class MlxBatch:
    """Implements ``backend.protocol.Batch``."""

    def __init__(
        self,
        model: Any,
        samplers: SamplerCache,
        kept: dict[str, KeptCache],
        *,
        max_sequences: int,
        max_prefills: int,
    ) -> None:
        """``kept``: the saved states of the model by key, which outlive the batch."""
        self._samplers = samplers
        self._kept = kept
        self._sequences: dict[int, _BatchedSequence] = {}
        self._uids: dict[str, int] = {}
        self._stops: dict[frozenset[int], StopSequences] = {}
        self._generator: Any = BatchGenerator(
            model,
            completion_batch_size=max_sequences,
            prefill_batch_size=min(max_prefills, max_sequences),
            prefill_step_size=LARGEST_CHUNK,
        )

    def execute(self, plan: StepPlan) -> StepResult:
        saved, last_tokens = self._save(plan)
        self._remove(plan.leave)
        for key in plan.forget:
            self._kept.pop(key, None)
        failed = [(s.spec.id, error) for s in plan.enter if (error := self._insert(s)) is not None]
        prefilled: list[Prefilled] = []
        tokens: list[tuple[_BatchedSequence, NewToken]] = []
        if self._sequences and (plan.decode or plan.prefill):
            prefilled, tokens = self._step(plan)
        failures = self._take_out_failed()
        return StepResult(
            prefilled=tuple(p for p in prefilled if p.request_id not in failures),
            tokens=(
                *last_tokens,
                *((s.spec.id, token) for s, token in tokens if s.spec.id not in failures),
            ),
            failed=(*failed, *failures.items()),
            left=plan.leave,
            saved=saved,
            cache_bytes=int(self._generator.prompt_cache_nbytes) if self._sequences else 0,
        )

    def close(self) -> None:
        self._forget(list(self._sequences))
        self._generator = None

    # One step

    def _step(
        self, plan: StepPlan
    ) -> tuple[list[Prefilled], list[tuple[_BatchedSequence, NewToken]]]:
        """mlx-lm decodes one token for each running sequence, then takes one chunk of each prompt.

        The last token of a prompt is always a chunk of its own.
        """
        chunk = max((tokens for _, tokens in plan.prefill), default=1)
        self._generator.prefill_step_size = min(chunk, LARGEST_CHUNK)
        try:
            prompts, answers = self._generator.next()
            tokens = self._new_tokens(answers)
        except RuntimeError as error:
            raise_if_device_lost(error)
            raise
        prefilled = []
        for prompt in prompts:
            sequence = self._sequences[prompt.uid]
            done, total = prompt.progress
            cached = sequence.cached
            prefilled.append(Prefilled(sequence.spec.id, cached + done, cached + total, cached))
        self._forget([s.uid for s, token in tokens if token.finish is not None])
        return prefilled, tokens

    def _new_tokens(self, answers: Sequence[Any]) -> list[tuple[_BatchedSequence, NewToken]]:
        sequences = self._sequences
        asked = [(a, n) for a in answers if (n := sequences[a.uid].spec.top_logprobs) is not None]
        found = token_logprobs(
            [a.logprobs for a, _ in asked], [a.token for a, _ in asked], [n for _, n in asked]
        )
        logprobs = {a.uid: found_one for (a, _), found_one in zip(asked, found, strict=True)}
        return [
            (sequences[a.uid], _new_token(a.token, a.finish_reason, logprobs.get(a.uid)))
            for a in answers
        ]

    def _take_out_failed(self) -> dict[str, OmlxdError]:
        """Remove the sequences whose sampling failed in this step: id -> error."""
        failures: dict[str, OmlxdError] = {
            sequence.spec.id: GenerationFailed(why)
            for sequence in self._sequences.values()
            if (why := sequence.failure) is not None
        }
        if failures:
            self._remove(tuple(failures))
        return failures

    # In and out

    def _insert(self, entering: EnteringSequence) -> OmlxdError | None:
        try:
            self._insert_checked(entering)
        except OmlxdError as error:
            return step_failure(error)
        except Exception as error:  # a request that cannot start fails alone
            log.exception("request_insert_failed", request=entering.spec.id)
            return step_failure(error)
        return None

    def _insert_checked(self, entering: EnteringSequence) -> None:
        spec, cached = entering.spec, entering.cached_tokens
        self._check(spec)
        tokens = [*spec.prompt, *entering.answer]
        sampler = self._samplers.sampler(spec.sampling, drawn=len(entering.answer))
        processors = logits_processors(spec.sampling, len(spec.prompt))
        (uid,) = self._generator.insert_segments(
            [[tokens[cached:]]],
            max_tokens=[spec.max_tokens - len(entering.answer)],
            caches=[self._cache_of(entering, tokens)],
            all_tokens=[tokens[:cached]],
            samplers=[sampler],
            logits_processors=[processors],
            stop_sequences=[self._stop_sequences(spec.stop_tokens)],
        )
        self._sequences[uid] = _BatchedSequence(
            spec, uid, entering.answer, cached, sampler, tuple(processors)
        )
        self._uids[spec.id] = uid

    def _cache_of(self, entering: EnteringSequence, tokens: list[int]) -> list[Any] | None:
        """The saved caches. mlx-lm merges them into new ones and does not change them."""
        if entering.state is None:
            return None
        kept = self._kept[entering.state.key]
        if list(kept.tokens) != tokens[: len(kept.tokens)]:
            raise ValueError(f"the state '{entering.state.key}' is of other tokens")
        return list(kept.layers)

    def _check(self, spec: SequenceSpec) -> None:
        vocab_size = self._samplers.vocab_size
        if not spec.prompt:
            raise InvalidRequest("The prompt has no tokens.", param="prompt")
        if max(spec.prompt) >= vocab_size or min(spec.prompt) < 0:
            raise InvalidRequest(
                f"A prompt token is outside this model's 0 to {vocab_size - 1}.",
                param="prompt",
            )
        if spec.max_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1.", param="max_tokens")
        check_sampling(spec.sampling, vocab_size)

    def _stop_sequences(self, tokens: frozenset[int]) -> StopSequences:
        if tokens not in self._stops:
            if len(self._stops) >= 64:
                self._stops.clear()
            self._stops[tokens] = StopSequences([[t] for t in sorted(tokens)])
        return self._stops[tokens]

    def _remove(self, ids: Sequence[str]) -> None:
        """Drop sequences, whether they wait, prefill or decode; unknown ids are ignored."""
        uids = [self._uids[i] for i in ids if i in self._uids]
        if uids:
            self._generator.remove(uids)
            self._forget(uids)

    def _forget(self, uids: Sequence[int]) -> None:
        for uid in uids:
            sequence = self._sequences.pop(uid)
            del self._uids[sequence.spec.id]

    # States

    def _save(self, plan: StepPlan) -> tuple[tuple[SavedSequence, ...], list[tuple[str, NewToken]]]:
        """The sequences of ``plan.save``, and the extra token of those that decode and leave."""
        saved, last_tokens = [], []
        for request_id, key in plan.save:
            if request_id not in self._uids:
                continue
            sequence = self._sequences[self._uids[request_id]]
            with mx.stream(self._generator.stream):
                layers, tokens = self._generator.extract_cache([sequence.uid])[sequence.uid]
                answer, last = tuple(tokens[len(sequence.spec.prompt) :]), None
                ahead = sampled_ahead(self._generator, sequence.uid)
                if ahead is None:
                    answer = sequence.answer
                elif request_id in plan.leave:
                    last = _last_token(sequence.spec, ahead, len(answer))
                    answer = (*answer, last.token)
                    last_tokens.append((request_id, last))
                over = last is not None and last.finish is not None
                state = None if over or not tokens else self._keep(key, layers, tokens)
            saved.append(SavedSequence(request_id, answer, state))
        return tuple(saved), last_tokens

    def _keep(self, key: str, layers: Sequence[Any], tokens: Sequence[int]) -> SequenceState:
        # Evaluate them now: before that they keep the arrays of the whole batch alive.
        mx.eval([layer.state for layer in layers])
        self._kept[key] = KeptCache(tuple(layers), tuple(tokens))
        return SequenceState(key, len(tokens), sum(int(layer.nbytes) for layer in layers))


def sampled_ahead(generator: Any, uid: int) -> tuple[int, mx.array] | None:
    """The next token of a decoding sequence and its log probabilities: mlx-lm samples one ahead.

    None for a sequence that does not decode yet. ``check_internals`` looks for the private
    attributes at the start.
    """
    batch = generator._generation_batch  # noqa: SLF001
    if uid not in batch.uids:
        return None
    row = batch.uids.index(uid)
    return int(batch._next_tokens[row].item()), batch._next_logprobs[row]  # noqa: SLF001


def _last_token(spec: SequenceSpec, ahead: tuple[int, mx.array], generated: int) -> NewToken:
    """The token ``ahead``, as mlx-lm would report it after ``generated`` tokens."""
    token, logprobs = ahead
    finish = None
    if token in spec.stop_tokens:
        finish = "stop"
    elif generated + 1 >= spec.max_tokens:
        finish = "length"
    if spec.top_logprobs is None:
        return _new_token(token, finish, None)
    (found,) = token_logprobs([logprobs], [token], [spec.top_logprobs])
    return _new_token(token, finish, found)


def _new_token(token: int, finish_reason: str | None, logprobs: TokenLogprobs | None) -> NewToken:
    finish = None if finish_reason is None else FinishReason(finish_reason)
    if logprobs is None:
        return NewToken(token, finish=finish)
    return NewToken(token, logprobs.chosen, logprobs.top, finish)
