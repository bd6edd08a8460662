"""The text of an answer from its tokens, piece by piece. The joined pieces are the whole text.

A character is sent when it is complete. Bytes that are not UTF-8 become U+FFFD as soon as no later
byte can change that. Incomplete bytes at the very end are dropped.
"""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from omlxd.text.protocol import Tokenizer

_CONTEXT = 6
"""Tokens kept before the new ones. They decide about the spaces between words."""

_UNFINISHED = 8
"""Most U+FFFD that an unfinished character is shown as. A character of 4 bytes is shown as 1 or 3.
A decoder that joins byte tokens may add some for the bytes of the context."""

_WINDOW = 16
"""Most tokens that wait for more. Reached only when each of them ends inside a character."""

_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """``data``: the token's own bytes. ``text``: these bytes as text, with escapes for bytes that
    are only a part of a character."""

    text: str
    data: bytes


def token_piece(tokenizer: Tokenizer, token: int) -> TokenPiece:
    """One token alone. It may be a part of a character. The text of a special token is its name."""
    data = tokenizer.token_bytes(token)
    return TokenPiece(data.decode("utf-8", errors="backslashreplace"), data)


class _Joiner(Protocol):
    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...

    @property
    def pending(self) -> bool: ...

    @property
    def late(self) -> int: ...


class Detokenizer:
    """The text of one answer.

    ``prompt``: the tokens of the text that the answer continues (a completion). Its first word may
    need a leading space, or it may begin with the rest of a character. The answer to chat messages
    is a text of its own, and has an empty ``prompt``.
    """

    def __init__(self, tokenizer: Tokenizer, *, prompt: Sequence[int] = ()) -> None:
        self._skipped = tokenizer.special_tokens
        context = [token for token in prompt[-_CONTEXT:] if token not in self._skipped]
        self._joiner = _joiner(tokenizer, context, fresh=not context)

    def skips(self, token: int) -> bool:
        """Whether ``token`` is never part of a text."""
        return token in self._skipped

    def push(self, tokens: Iterable[int]) -> str:
        """The text that ``tokens`` complete; it may be empty. Special tokens have no text."""
        return "".join(self._joiner.push(token) for token in tokens if token not in self._skipped)

    def finish(self) -> str:
        """The last text, when no token follows; incomplete bytes are dropped."""
        return self._joiner.finish()

    @property
    def pending(self) -> bool:
        """Whether a part of the last token's text is not returned yet."""
        return self._joiner.pending

    @property
    def late(self) -> int:
        """How many characters of the last text belong to the tokens before the last one.

        They are the U+FFFD of bytes that could not be completed any more.
        """
        return self._joiner.late


def _joiner(tokenizer: Tokenizer, context: list[int], *, fresh: bool) -> _Joiner:
    match tokenizer.joining:
        case "bytes":
            return _ByteJoiner(tokenizer, context, strip=False)
        case "bytes_less_space":
            return _ByteJoiner(tokenizer, context, strip=fresh)
        case "context":
            return _WindowJoiner(tokenizer, context)
        case unreachable:
            assert_never(unreachable)


class _ByteJoiner:
    """Joins the bytes of the tokens and reads them as UTF-8."""

    def __init__(self, tokenizer: Tokenizer, context: list[int], *, strip: bool) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = strip
        self.late = 0
        for token in context:
            self._utf8.decode(tokenizer.token_bytes(token))

    def push(self, token: int) -> str:
        data = self._tokenizer.token_bytes(token)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        first = self._utf8.decode(data[:1])
        # The token begins inside the character that is still incomplete, if there is one.
        self.late = max(0, len(first) + self.pending - 1)
        return first + self._utf8.decode(data[1:])

    def finish(self) -> str:
        self._utf8.reset()
        return ""

    @property
    def pending(self) -> bool:
        return bool(self._utf8.getstate()[0])


class _WindowJoiner:
    """Decodes a few tokens without and with the new ones. The difference is the new text."""

    def __init__(self, tokenizer: Tokenizer, context: list[int]) -> None:
        self._tokenizer = tokenizer
        self._sent = context
        self._waiting: list[int] = []
        self._shown = 0
        """How many characters of the waiting tokens were sent."""
        self.late = 0

    def push(self, token: int) -> str:
        self._waiting.append(token)
        text = self._new_text(self._waiting)
        unfinished = len(text) - len(text.rstrip(_REPLACEMENT))
        settled = len(text) - min(unfinished, _UNFINISHED)
        new = text[self._shown : settled]
        waited = len(self._waiting) > 1
        self.late = len(new) - len(new.lstrip(_REPLACEMENT)) if waited else 0
        self._shown = max(self._shown, settled)
        if not unfinished:
            self._leave_behind(len(self._waiting))
        elif len(self._waiting) > _WINDOW:
            self._leave_behind(1)
        return new

    def finish(self) -> str:
        text = self._new_text(self._waiting).rstrip(_REPLACEMENT)[self._shown :]
        self._leave_behind(len(self._waiting))
        return text

    @property
    def pending(self) -> bool:
        return bool(self._waiting)

    def _new_text(self, tokens: list[int]) -> str:
        before = self._decode(self._sent)
        return self._decode([*self._sent, *tokens])[len(before) :]

    def _leave_behind(self, count: int) -> None:
        left = self._waiting[:count]
        del self._waiting[:count]
        self._shown = max(0, self._shown - len(self._new_text(left))) if self._waiting else 0
        self._sent = [*self._sent, *left][-_CONTEXT:]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)
