"""Log probabilities of the rows that asked for them, in one go on the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

LEAST = -9999.0
"""Stands for an impossible token: minus infinity has no JSON."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    chosen: float
    top: tuple[tuple[int, float], ...]
    """(token id, log probability), most likely first."""


def token_logprobs(
    rows: Sequence[mx.array], tokens: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """For each row of log probabilities its token's own, and its ``counts`` best."""
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
