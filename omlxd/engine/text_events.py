"""The text of one generation: tokens in, text up to a stop string out, and one end."""

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import assert_never

from omlxd.backend.sequence import FinishReason, NewToken
from omlxd.engine.generation import Generation, PromptProgress, TokensArrived
from omlxd.errors import GenerationFailed
from omlxd.text.detokenize import Detokenizer
from omlxd.text.stops import Passed, StopStrings


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the text.

    Attributes:
        text: may be white space only. It is empty only when a token without text is reported.
        tokens: the tokens whose text is complete with this piece, with their log probabilities.
            Tokens without sent text are never reported: a token that a stop string cuts, a stop
            token, a special token, and incomplete bytes at the end.
        starts: where each of ``tokens`` begins in the whole text, in characters. A token that
            begins inside a character has the place of that character.
    """

    text: str
    tokens: tuple[NewToken, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GenerationEnd:
    """The last event; there is exactly one.

    Attributes:
        stop: the stop string that ended the text; None when something else ended it.
        completion_tokens: all tokens, including the one that ended the text: a stop token, or
            the token that completed the stop string.
    """

    finish_reason: FinishReason
    stop: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


TextEvent = PromptProgress | TextDelta | GenerationEnd


async def text_events(
    generation: Generation, detokenizer: Detokenizer, stops: StopStrings
) -> AsyncGenerator[TextEvent]:
    """The text of ``generation`` in pieces, then one ``GenerationEnd``.

    Cancels the generation as soon as a stop string is complete, and when the reader leaves.
    Raises the errors of the generation, and ``GenerationFailed`` if other code cancelled it.
    """
    text = _TextSoFar(detokenizer, stops)
    try:
        async for event in generation:
            match event:
                case PromptProgress():
                    yield event
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


def _end(generation: Generation, text: "_TextSoFar", finish: FinishReason) -> GenerationEnd:
    return GenerationEnd(
        finish_reason=finish,
        stop=text.stop,
        prompt_tokens=generation.prompt_tokens,
        completion_tokens=text.count,
        cached_tokens=generation.cached_tokens,
    )


class _TextSoFar:
    """The text so far, and the tokens that it consists of."""

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._decoded = 0
        """Characters that the detokenizer gave, including those that are held back."""
        self._sent = 0
        self._unsettled: list[tuple[NewToken, int]] = []
        """Tokens that end inside a character, each with its start."""
        self._settled: deque[tuple[int, NewToken, int]] = deque()
        """Tokens that are not reported yet: (number of characters at its end, token, start)."""
        self.count = 0
        self.finish: FinishReason | None = None
        self.stop: str | None = None

    def take(self, tokens: Sequence[NewToken]) -> TextDelta | None:
        """The text that ``tokens`` complete; tokens after the end are ignored."""
        pieces = []
        for token in tokens:
            pieces.append(self._take_one(token))
            if self.finish is not None:
                break
        text = "".join(pieces)
        shown = self._shown()
        if not text and not shown:
            return None
        return TextDelta(text, tuple(t for t, _ in shown), tuple(start for _, start in shown))

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
