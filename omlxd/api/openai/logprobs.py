"""Log probabilities in the two shapes that OpenAI's endpoints have for them."""

import math
from collections.abc import Sequence
from typing import Any, Final

from omlxd.backend.sequence import NewToken
from omlxd.text.logprobs import token_piece
from omlxd.text.protocol import Tokenizer

_IMPOSSIBLE: Final = -9999.0
"""What OpenAI writes for a probability of zero, whose logarithm JSON has no number for."""


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[NewToken]) -> dict[str, Any]:
    """One entry a token: its text, its bytes, and the most likely ones in its place."""
    return {
        "content": [
            {
                **_entry(tokenizer, token.token, token.logprob),
                "top_logprobs": [_entry(tokenizer, other, value) for other, value in token.top],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[NewToken], starts: Sequence[int]
) -> dict[str, Any]:
    """Parallel lists. ``starts``: where in the answer's text each token begins, in characters."""
    return {
        "tokens": [token_piece(tokenizer, token.token).text for token in tokens],
        "token_logprobs": [_number(token.logprob) for token in tokens],
        "top_logprobs": [_best(tokenizer, token) for token in tokens],
        "text_offset": list(starts),
    }


def _best(tokenizer: Tokenizer, token: NewToken) -> dict[str, float]:
    """Text -> log probability. Of tokens with the same text the likeliest counts."""
    best: dict[str, float] = {}
    for other, value in token.top:
        best.setdefault(token_piece(tokenizer, other).text, _number(value))
    return best


def _entry(tokenizer: Tokenizer, token: int, logprob: float | None) -> dict[str, Any]:
    piece = token_piece(tokenizer, token)
    return {"token": piece.text, "logprob": _number(logprob), "bytes": list(piece.data)}


def _number(logprob: float | None) -> float:
    if logprob is None or not math.isfinite(logprob):
        return _IMPOSSIBLE
    return logprob
