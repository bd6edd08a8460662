"""Finds stop strings in a text that arrives in pieces: what may be sent, and when it ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlxd.text.protocol import Tokenizer


def stop_ids(tokenizer: Tokenizer, stops: Sequence[str]) -> frozenset[int]:
    """The special tokens that ``stops`` name. They have no text, so no text search finds them."""
    names = {stop.encode(errors="replace") for stop in stops}
    if not names:
        return frozenset()
    return frozenset(t for t in tokenizer.special_tokens if tokenizer.token_bytes(t) in names)


@dataclass(frozen=True, slots=True)
class Passed:
    """``text`` may be sent; ``matched`` is the stop string that ended the answer, if one did."""

    text: str
    matched: str | None = None


class StopStrings:
    """Cuts an answer before the stop string that completes first.

    If several are complete at the same character, the longest counts, so the result does not
    depend on how the text was cut into pieces. Raises ValueError for an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._matchers = [_Matcher(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> Passed:
        """Take the next piece. What may be the beginning of a stop string is held back.

        After a stop string matched, nothing more may be sent.
        """
        if self._matched is not None:
            return Passed("", self._matched)
        if not self._matchers:
            return Passed(text)
        for position, character in enumerate(text):
            matched = self._advance(character)
            if matched is not None:
                whole = self._held + text[: position + 1]
                self._held, self._matched = "", matched
                return Passed(whole[: len(whole) - len(matched)], matched)
        whole = self._held + text
        sent = len(whole) - max(matcher.length for matcher in self._matchers)
        self._held = whole[sent:]
        return Passed(whole[:sent])

    def finish(self) -> str:
        """The text still held back, when the answer ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        complete = [m.stop for m in self._matchers if m.advance(character)]
        return complete[0] if complete else None


class _Matcher:
    """The length of the stop string's prefix that ends the text (Knuth, Morris and Pratt, 1977)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        """Characters of ``stop`` that the text ends with."""
        self._shorter = _borders(stop)

    def advance(self, character: str) -> bool:
        """Take one character; True when the whole stop string is there."""
        while self.length and self.stop[self.length] != character:
            self.length = self._shorter[self.length - 1]
        if self.stop[self.length] == character:
            self.length += 1
        return self.length == len(self.stop)


def _borders(stop: str) -> list[int]:
    """For each prefix of ``stop``: the length of its longest proper prefix that also ends it."""
    borders = [0] * len(stop)
    length = 0
    for end in range(1, len(stop)):
        while length and stop[length] != stop[end]:
            length = borders[length - 1]
        if stop[length] == stop[end]:
            length += 1
        borders[end] = length
    return borders
