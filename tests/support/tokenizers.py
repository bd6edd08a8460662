"""A tokenizer in plain Python. A test gives it the byte strings of its vocabulary."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from omlxd.text.protocol import Joining

BOS = 0
EOS = 1


class PieceTokenizer:
    """Fits ``omlxd.text.protocol.Tokenizer``. Ids 0 and 1 are special; a piece of bytes gets its
    id when it is first seen. ``encode`` makes one token of each byte."""

    def __init__(
        self,
        joining: Joining = "bytes",
        *,
        render: Callable[[Sequence[Mapping[str, Any]]], str] | None = None,
    ) -> None:
        self.joining = joining
        self.special_tokens = frozenset({BOS, EOS})
        self.stop_tokens = frozenset({EOS})
        self.longest_decode = 0
        self.rendered: list[Sequence[Mapping[str, Any]]] = []
        self._render = render
        self._pieces = [b"<s>", b"</s>"]

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def has_chat_template(self) -> bool:
        return self._render is not None

    def tokens(self, pieces: Sequence[bytes]) -> list[int]:
        """The ids of ``pieces``."""
        return [self._id(piece) for piece in pieces]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        tokens = self.tokens([bytes([byte]) for byte in text.encode()])
        return [BOS, *tokens] if add_special_tokens else tokens

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        self.longest_decode = max(self.longest_decode, len(tokens))
        if skip_special_tokens:
            tokens = [token for token in tokens if token not in self.special_tokens]
        data = b"".join(self._pieces[token] for token in tokens)
        if self.joining != "bytes":
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_arguments: Mapping[str, Any],
        check: Callable[[int], None],
    ) -> str:
        assert self._render is not None
        self.rendered.append(messages)
        return self._render(messages)

    def _id(self, piece: bytes) -> int:
        if piece not in self._pieces[2:]:
            self._pieces.append(piece)
        return self._pieces.index(piece, 2)


def cut(data: bytes | str, places: Sequence[int]) -> list[Any]:
    """``data`` in pieces, cut at ``places`` (any numbers; taken modulo its length)."""
    if not data:
        return []
    marks = sorted({0, len(data), *(place % len(data) for place in places)})
    return [data[a:b] for a, b in pairwise(marks)]
