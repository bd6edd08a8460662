"""Text to tokens and back with a transformers tokenizer, safely from several threads."""

import copy
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from omlxd.backend.mlx.token_bytes import PROBE, Joining, joining_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer


class Coding(Protocol):
    @property
    def joining(self) -> Joining: ...

    @property
    def special_tokens(self) -> frozenset[int]: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...


def coding_of(wrapper: Any) -> Coding:
    """The quickest coding that does what ``wrapper``, a transformers tokenizer, does."""
    backend = getattr(wrapper, "backend_tokenizer", None)
    if backend is None:
        return LockedCoding(wrapper)
    # A limit or a padding kept in tokenizer.json is for training batches, not for prompts.
    backend.no_truncation()
    backend.no_padding()
    return DirectCoding(backend) if _acts_alone(backend, wrapper) else LockedCoding(wrapper)


class DirectCoding:
    """The Rust tokenizer inside a transformers tokenizer. It is never changed here; the object
    around it changes it with every call, which fails when another thread is in it."""

    def __init__(self, backend: "RustTokenizer") -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self.special_tokens = frozenset(id for id, token in added.items() if token.special)
        self.joining, self._to_bytes = joining_of(backend)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # As a batch: the call for one text holds the interpreter until it is done.
        (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoded.ids)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        return str(self._backend.decode(list(tokens), skip_special_tokens=skip_special_tokens))

    def token_bytes(self, token: int) -> bytes:
        piece = self._backend.id_to_token(token)
        if piece is None:
            return b""
        if token in self.special_tokens:
            return piece.encode()
        if self.joining == "context":
            return self.decode([token], skip_special_tokens=False).encode()
        return self._to_bytes(piece)


class LockedCoding:
    """Any transformers tokenizer, one call at a time: those in Python promise no more.

    Texts are encoded by one copy and tokens decoded by another, or the loop, which decodes a few
    tokens at a time, would wait for the end of a long prompt.
    """

    joining: Joining = "context"

    def __init__(self, wrapper: Any) -> None:
        self._encoder = wrapper
        self._encoding = threading.Lock()
        self._decoder = copy.deepcopy(wrapper)
        self._decoding = threading.Lock()
        self._size = len(wrapper)
        self.special_tokens = frozenset(wrapper.all_special_ids)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        with self._encoding:
            return list(self._encoder.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        known = [token for token in tokens if 0 <= token < self._size]
        with self._decoding:
            text: str = self._decoder.decode(
                known,
                skip_special_tokens=skip_special_tokens,
                # It would drop spaces before punctuation that the model did write.
                clean_up_tokenization_spaces=False,
            )
        return text

    def token_bytes(self, token: int) -> bytes:
        return self.decode([token], skip_special_tokens=False).encode()


def _acts_alone(backend: "RustTokenizer", wrapper: Any) -> bool:
    """Whether ``backend`` does all that ``wrapper`` does; some rewrite the text around it."""
    ids = backend.encode(PROBE, add_special_tokens=True).ids
    if list(wrapper.encode(PROBE, add_special_tokens=True)) != ids:
        return False
    decoded = wrapper.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return bool(decoded == backend.decode(ids, skip_special_tokens=True))
