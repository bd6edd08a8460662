"""Makes mlx-lm's sampling functions from parameters, and log probabilities of tokens."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import mlx.core as mx
import structlog
from mlx_lm.sample_utils import (
    make_frequency_penalty,
    make_logits_processors,
    make_presence_penalty,
    make_repetition_penalty,
)

from omlxd.backend.sequence import Sampling
from omlxd.errors import InvalidRequest

log = structlog.get_logger(__name__)

Filter = Callable[[mx.array], mx.array]
Processor = Callable[[mx.array, mx.array], mx.array]

_GREEDY_BELOW = 1e-5
"""A division by a temperature below this overflows float32."""
_WHOLE_CONTEXT = 2**31 - 1


class TokenSampler:
    """(rows, vocabulary) log probabilities -> (rows,) token ids.

    Raises nothing, because one row's parameters must not end the step of the other rows. After a
    failure ``failure`` has the reason and the tokens are greedy; its requests must be dropped.
    """

    def __init__(self, sampling: Sampling, vocab_size: int, drawn: int = 0) -> None:
        """``drawn``: tokens that an earlier sampler with the same seed has drawn already."""
        self.failure: str | None = None
        self._filters = _filters(sampling, vocab_size)
        self._sharpness = 1.0 / sampling.temperature
        self._key = None if sampling.seed is None else _key_after(sampling.seed, drawn)

    def __call__(self, logprobs: mx.array) -> mx.array:
        try:
            return self._sample(logprobs)
        except Exception as error:
            log.exception("sampler_failed")
            self.failure = f"sampling failed ({type(error).__name__}: {error})"
            return mx.argmax(logprobs, axis=-1)

    def _sample(self, logprobs: mx.array) -> mx.array:
        for keep in self._filters:
            logprobs = keep(logprobs)
        key = None
        if self._key is not None:
            # Its own chain of keys, independent of the other sequences.
            self._key, key = mx.random.split(self._key)
        return mx.random.categorical(logprobs * self._sharpness, key=key)


def _key_after(seed: int, drawn: int) -> mx.array:
    key: mx.array = mx.random.key(seed % 2**64)
    for n in range(1, drawn + 1):
        key, _ = mx.random.split(key)
        if n % 1000 == 0:  # or the graph of a long answer would become deep
            mx.eval(key)
    return key


class GreedySampler:
    """The most likely token of each row."""

    failure: str | None = None

    def __call__(self, logprobs: mx.array) -> mx.array:
        return mx.argmax(logprobs, axis=-1)


class SamplerCache:
    """Shares one sampler for equal parameters: only then mlx-lm samples a batch in one call."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._greedy = GreedySampler()
        self._shared: WeakValueDictionary[tuple[float | None, ...], TokenSampler] = (
            WeakValueDictionary()
        )

    def sampler(self, sampling: Sampling, drawn: int = 0) -> TokenSampler | GreedySampler:
        if sampling.temperature < _GREEDY_BELOW:
            return self._greedy
        if sampling.seed is not None:
            return TokenSampler(sampling, self.vocab_size, drawn)
        key = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
        sampler = self._shared.get(key)
        if sampler is None or sampler.failure is not None:
            sampler = TokenSampler(sampling, self.vocab_size)
            self._shared[key] = sampler
        return sampler


class LogitsProcessor:
    """(tokens so far, (1, vocabulary) logits) -> logits. Like TokenSampler it raises nothing."""

    def __init__(self, process: Processor) -> None:
        self.failure: str | None = None
        self._process = process

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        try:
            return self._process(tokens, logits)
        except Exception as error:
            log.exception("logits_processor_failed")
            self.failure = f"a logits processor failed ({type(error).__name__}: {error})"
            return logits


def logits_processors(sampling: Sampling, prompt_tokens: int) -> list[LogitsProcessor]:
    """Bias first, then penalties: repetition over prompt and answer, the others over the answer."""
    processors: list[Processor] = []
    if sampling.logit_bias:
        processors += make_logits_processors(logit_bias=dict(sampling.logit_bias))
    if sampling.repetition_penalty not in (None, 1.0):
        processors.append(make_repetition_penalty(sampling.repetition_penalty, _WHOLE_CONTEXT))
    if sampling.presence_penalty:
        penalty = make_presence_penalty(sampling.presence_penalty, _WHOLE_CONTEXT)
        processors.append(_over_answer(penalty, prompt_tokens))
    if sampling.frequency_penalty:
        penalty = make_frequency_penalty(sampling.frequency_penalty, _WHOLE_CONTEXT)
        processors.append(_over_answer(penalty, prompt_tokens))
    return [LogitsProcessor(p) for p in processors]


def check_sampling(sampling: Sampling, vocab_size: int) -> None:
    """Raises InvalidRequest that names the field that is wrong for this model."""
    for token, _ in sampling.logit_bias:
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"logit_bias names token {token}; this model's tokens are 0 to {vocab_size - 1}.",
                param="logit_bias",
            )
    # Each condition is also false for "not a number".
    if not sampling.temperature >= 0:
        raise InvalidRequest("temperature must be at least 0.", param="temperature")
    if sampling.top_p is not None and not 0 < sampling.top_p <= 1:
        raise InvalidRequest("top_p must be above 0 and at most 1.", param="top_p")
    if sampling.min_p is not None and not 0 <= sampling.min_p <= 1:
        raise InvalidRequest("min_p must be between 0 and 1.", param="min_p")
    if sampling.top_k is not None and sampling.top_k < 1:
        raise InvalidRequest("top_k must be at least 1.", param="top_k")
    if sampling.repetition_penalty is not None and not sampling.repetition_penalty > 0:
        raise InvalidRequest("repetition_penalty must be above 0.", param="repetition_penalty")


def _filters(sampling: Sampling, vocab_size: int) -> list[Filter]:
    """Filters in mlx-lm's order, before the temperature, without those that keep everything.

    mlx-lm compiles its own filters with the parameter as a constant: each new value of top_p or
    min_p would stop every request while the compiler runs (seconds on the CPU).
    """
    filters: list[Filter] = []
    if (top_p := sampling.top_p) is not None and top_p < 1.0:
        filters.append(lambda logprobs: keep_nucleus(logprobs, top_p))
    if min_p := sampling.min_p:
        filters.append(lambda logprobs: keep_likely(logprobs, min_p))
    if (top_k := sampling.top_k) is not None and top_k < vocab_size:
        filters.append(lambda logprobs: keep_best(logprobs, top_k))
    return filters


def keep_nucleus(logprobs: mx.array, top_p: float) -> mx.array:
    """The smallest set of tokens in each row whose mass reaches ``top_p`` (arXiv 1904.09751)."""
    best_first = -mx.sort(-logprobs, axis=-1)
    mass = mx.softmax(best_first.astype(mx.float32), axis=-1)
    before = mx.cumsum(mass, axis=-1) - mass
    kept = mx.maximum((before < top_p).sum(axis=-1, keepdims=True), 1)
    least = mx.take_along_axis(best_first, kept - 1, axis=-1)
    return mx.where(logprobs < least, -math.inf, logprobs)


def keep_likely(logprobs: mx.array, min_p: float) -> mx.array:
    """Tokens at least ``min_p`` times as likely as the best of the row (arXiv 2407.01082)."""
    least = mx.max(logprobs, axis=-1, keepdims=True) + math.log(min_p)
    return mx.where(logprobs < least, -math.inf, logprobs)


def keep_best(logprobs: mx.array, top_k: int) -> mx.array:
    """The ``top_k`` most likely tokens of each row; ``top_k`` is below the vocabulary's size."""
    rest = mx.argpartition(-logprobs, kth=top_k - 1, axis=-1)[..., top_k:]
    return mx.put_along_axis(logprobs, rest, mx.array(-math.inf, logprobs.dtype), axis=-1)


def _over_answer(penalty: Processor, prompt_tokens: int) -> Processor:
    return lambda tokens, logits: penalty(tokens[prompt_tokens:], logits)


# Log probabilities

LEAST = -9999.0
"""The log probability of an impossible token, since JSON has no minus infinity."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    chosen: float
    top: tuple[tuple[int, float], ...]
    """(token id, log probability), most likely first."""


def token_logprobs(
    rows: Sequence[mx.array], tokens: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """For each row of log probabilities: the one of its token, and the ``counts`` best."""
    if not rows:
        return []
    stacked = mx.stack(list(rows)).astype(mx.float32)
    chosen = mx.take_along_axis(stacked, mx.array(list(tokens))[:, None], axis=-1)[:, 0]
    most = min(max(counts), stacked.shape[-1])
    if most == 0:
        return [TokenLogprobs(_finite(c), ()) for c in _listed(chosen)]
    best = mx.argpartition(-stacked, kth=most - 1, axis=-1)[:, :most]
    values = mx.take_along_axis(stacked, best, axis=-1)
    mx.eval(chosen, best, values)
    found = zip(_listed(chosen), _listed(best), _listed(values), counts, strict=True)
    return [
        TokenLogprobs(_finite(own), _ordered(ids, logprobs)[:count])
        for own, ids, logprobs, count in found
    ]


def _listed(array: mx.array) -> list[Any]:
    items = array.tolist()
    return items if isinstance(items, list) else [items]


def _ordered(ids: list[int], logprobs: list[float]) -> tuple[tuple[int, float], ...]:
    pairs = sorted(zip(ids, logprobs, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return tuple((i, _finite(value)) for i, value in pairs)


def _finite(value: float) -> float:
    return value if value > LEAST else LEAST
