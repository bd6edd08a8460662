"""The answer of one generation as text: tokens in, text up to a stop string out, one end."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from omlxd.backend.sequence import FinishReason, NewToken
from omlxd.engine.generation import PromptProgress, TokensArrived
from omlxd.errors import GenerationFailed
from omlxd.text.detokenize import Detokenizer
from omlxd.text.stops import Passed, StopStrings


class TokenStream(Protocol):
    """What an answer needs of a generation."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[PromptProgress | TokensArrived]: ...

    def cancel(self) -> None:
        """End it; idempotent and safe at any time."""


@dataclass(frozen=True, slots=True)
class AnswerProgress:
    """Prompt tokens in the cache by now, of how many; ``cached`` of them were not computed."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """The next piece of the answer.

    Attributes:
        text: may be white space only; empty only where a token without text is reported.
        tokens: those whose whole text is sent by now and was not before, with their log
            probabilities. Tokens that a stop string cut, stop tokens, special tokens and
            incomplete bytes at the end are in no delta, as they are in no text.
        starts: where in the whole answer, in characters, each of ``tokens`` begins; one that
            begins inside a character has that character's place.
    """

    text: str
    tokens: tuple[NewToken, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """The last item, exactly once.

    Attributes:
        stop: the stop string that ended the answer, None where something else did.
        completion_tokens: up to and with the token that ended the answer, be it a stop token
            or the one that completed the stop string.
    """

    finish_reason: FinishReason
    stop: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


Answer = AnswerProgress | AnswerDelta | AnswerEnd


async def answer(
    generation: TokenStream, detokenizer: Detokenizer, stops: StopStrings
) -> AsyncGenerator[Answer]:
    """The text of ``generation`` in pieces, then one ``AnswerEnd``.

    Cancels the generation as soon as a stop string is complete, and when the reader leaves.
    Raises what the generation raises, ``GenerationFailed`` where it was cancelled by others.
    """
    text = _AnswerText(detokenizer, stops)
    try:
        async for event in generation:
            match event:
                case PromptProgress():
                    yield AnswerProgress(event.done, event.total, event.cached)
                case TokensArrived():
                    delta = text.take(event.tokens)
                    if text.stop is not None:
                        generation.cancel()
                    if delta is not None:
                        yield delta
                    if text.finish is not None:
                        yield _end(generation, text, text.finish)
                        return
                case unreachable:
                    assert_never(unreachable)
        raise GenerationFailed("The answer was cancelled before it was complete.")
    finally:
        generation.cancel()


def _end(generation: TokenStream, text: "_AnswerText", finish: FinishReason) -> AnswerEnd:
    return AnswerEnd(
        finish_reason=finish,
        stop=text.stop,
        prompt_tokens=generation.prompt_tokens,
        completion_tokens=text.count,
        cached_tokens=generation.cached_tokens,
    )


class _AnswerText:
    """The text so far, and which tokens it is made of."""

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._decoded = 0
        """Characters out of the detokenizer, those held back included."""
        self._sent = 0
        self._unsettled: list[tuple[NewToken, int]] = []
        """Tokens that end inside a character, each with where it begins."""
        self._settled: deque[tuple[int, NewToken, int]] = deque()
        """Tokens not sent yet, each with the number of characters at its end, and its start."""
        self.count = 0
        self.finish: FinishReason | None = None
        self.stop: str | None = None

    def take(self, tokens: Sequence[NewToken]) -> AnswerDelta | None:
        """What of the answer ``tokens`` allow to send. Those after the end are not looked at."""
        pieces = []
        for token in tokens:
            pieces.append(self._take_one(token))
            if self.finish is not None:
                break
        text = "".join(pieces)
        shown = self._shown()
        if not text and not shown:
            return None
        return AnswerDelta(text, tuple(t for t, _ in shown), tuple(start for _, start in shown))

    def _take_one(self, token: NewToken) -> str:
        self.count += 1
        self.finish = token.finish
        text = ""
        if token.finish is not FinishReason.STOP:
            text = self._pass(self._decode(token))
        if self.finish is not None and self.stop is None:
            text += self._pass(self._finish_decoding())
        if self.finish is not None and self.stop is None:
            text += self._flush()
        return text

    def _decode(self, token: NewToken) -> str:
        if self._detokenizer.skips(token.token):
            return ""
        text = self._detokenizer.push((token.token,))
        self._unsettled.append((token, self._decoded + self._detokenizer.late))
        self._decoded += len(text)
        if not self._detokenizer.pending:
            self._settle()
        return text

    def _finish_decoding(self) -> str:
        text = self._detokenizer.finish()
        self._decoded += len(text)
        return text

    def _settle(self) -> None:
        self._settled.extend((self._decoded, token, start) for token, start in self._unsettled)
        self._unsettled.clear()

    def _pass(self, text: str) -> str:
        passed: Passed = self._stops.push(text)
        if passed.matched is not None:
            self.stop, self.finish = passed.matched, FinishReason.STOP
        self._sent += len(passed.text)
        return passed.text

    def _flush(self) -> str:
        text = self._stops.finish()
        self._sent += len(text)
        return text

    def _shown(self) -> list[tuple[NewToken, int]]:
        shown = []
        while self._settled and self._settled[0][0] <= self._sent:
            _, token, start = self._settled.popleft()
            shown.append((token, start))
        return shown
