"""The common parts of OpenAI's chat and text completion answers, and their log probabilities."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from omlxd.api.connection import DONE, data_event
from omlxd.api.errors import error_body
from omlxd.api.generate import Output, Usage
from omlxd.backend.sequence import NewToken
from omlxd.engine.request import GenerationRequest
from omlxd.engine.text_events import GenerationEnd, TextDelta
from omlxd.errors import OmlxdError
from omlxd.text.detokenize import token_piece
from omlxd.text.protocol import Tokenizer

_IMPOSSIBLE: Final = -9999.0
"""OpenAI writes this for a probability of 0. JSON has no number for its logarithm."""

# Made once: json.dumps would make an encoder for every token.
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


class CompletionsWriter(ABC):
    """Fits ``ResponseWriter``. Each event of a stream is one chunk with one choice."""

    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, request_id: str, created: int, *, logprobs: bool, usage: bool) -> None:
        """``usage``: a stream ends with a chunk that has the usage."""
        self.id = request_id
        self._created = created
        self._logprobs = logprobs
        self._with_usage = usage
        self._head: dict[str, Any] = {}
        """The beginning of every chunk. Empty until ``begin``."""

    def begin(self, request: GenerationRequest) -> None:
        self._tokenizer = request.tokenizer
        self._head = {
            "id": self.id,
            "object": self.chunk_object,
            "created": self._created,
            "model": request.model_id,
        }

    def event(self, index: int, event: TextDelta | GenerationEnd) -> bytes:
        if isinstance(event, TextDelta):
            return self._chunk(self._delta(index, event))
        return self._chunk(self._end(index, event.finish_reason.value))

    def finish(self, usage: Usage) -> bytes:
        if not self._with_usage:
            return DONE
        return self._event({"choices": [], "usage": _usage(usage)}) + DONE

    def failure(self, error: OmlxdError) -> bytes:
        # Strict clients need the head in an error too. But it has no choices: Zed would take the
        # event for a chunk then, and lose the error.
        return data_event(error_body(error, self._head)) + DONE

    def whole(self, outputs: Sequence[Output], usage: Usage) -> bytes:
        body = {
            **self._head,
            "object": self.whole_object,
            "choices": [self._choice(index, output) for index, output in enumerate(outputs)],
            "usage": _usage(usage),
        }
        return _dumps(body)

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return self._event({"choices": [choice]})

    def _event(self, body: dict[str, Any]) -> bytes:
        return data_event(_dumps({**self._head, **body}))

    @abstractmethod
    def _delta(self, index: int, delta: TextDelta) -> dict[str, Any]:
        """The choice of a chunk with more text."""

    @abstractmethod
    def _end(self, index: int, finish_reason: str) -> dict[str, Any]:
        """The choice of the last chunk."""

    @abstractmethod
    def _choice(self, index: int, output: Output) -> dict[str, Any]:
        """The choice of an answer that is no stream."""


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[NewToken]) -> dict[str, Any]:
    """For each token its text, its bytes, and the most likely tokens in its place."""
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
    """Lists of equal length. ``starts``: the position of each token in the text, in characters."""
    return {
        "tokens": [token_piece(tokenizer, token.token).text for token in tokens],
        "token_logprobs": [_number(token.logprob) for token in tokens],
        "top_logprobs": [_best(tokenizer, token) for token in tokens],
        "text_offset": list(starts),
    }


def _best(tokenizer: Tokenizer, token: NewToken) -> dict[str, float]:
    """Text -> log probability. Of several tokens with the same text, the most likely counts."""
    best: dict[str, float] = {}
    for other, value in token.top:
        best.setdefault(token_piece(tokenizer, other).text, _number(value))
    return best


def _entry(tokenizer: Tokenizer, token: int, logprob: float | None) -> dict[str, Any]:
    piece = token_piece(tokenizer, token)
    return {"token": piece.text, "logprob": _number(logprob), "bytes": list(piece.data)}


def _number(logprob: float | None) -> float:
    return _IMPOSSIBLE if logprob is None or not math.isfinite(logprob) else logprob


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _dumps(value: dict[str, Any]) -> bytes:
    return _encode(value).encode("utf-8", "replace")
