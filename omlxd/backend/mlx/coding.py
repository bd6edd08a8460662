"""Text to tokens and back with a transformers tokenizer, from several threads at a time."""

import copy
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer


Joining = Literal["bytes", "bytes_less_space", "context"]
"""How the bytes of tokens join to a text; the same values as in ``text.protocol``."""

PROBE = "Hello, wörld!  Příliš žluťoučký kůň\n\n\t你好 😀 👨‍👩‍👧 a <n> \u2581 .,\r\n x"
"""A text that a decoder changes if it does more than join bytes."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

_SPACE = "\u2581"


class Coding(Protocol):
    @property
    def joining(self) -> Joining: ...

    @property
    def special_tokens(self) -> frozenset[int]: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...


def coding_of(wrapper: Any) -> Coding:
    """The fastest coding with the same results as ``wrapper``, a transformers tokenizer."""
    backend = getattr(wrapper, "backend_tokenizer", None)
    if backend is None:
        return LockedCoding(wrapper)
    # tokenizer.json may have a limit or a padding for training batches; prompts need neither.
    backend.no_truncation()
    backend.no_padding()
    return DirectCoding(backend) if _acts_alone(backend, wrapper) else LockedCoding(wrapper)


class DirectCoding:
    """The Rust tokenizer inside a transformers tokenizer.

    Nothing here changes it, so several threads may use it. The transformers tokenizer changes it
    with every call, which fails while another thread uses it.
    """

    def __init__(self, backend: "RustTokenizer") -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self.special_tokens = frozenset(id for id, token in added.items() if token.special)
        self.joining, self._to_bytes = joining_of(backend)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # Encoded as a batch, because the call for one text does not release the interpreter lock.
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
    """Any transformers tokenizer, one call at a time, because tokenizers in Python are not safe
    for several threads.

    One copy encodes texts and another decodes tokens. Otherwise the event loop, which decodes a
    few tokens at a time, would wait until a long prompt is encoded.
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
                # It would drop spaces before punctuation that the model generated.
                clean_up_tokenization_spaces=False,
            )
        return text

    def token_bytes(self, token: int) -> bytes:
        return self.decode([token], skip_special_tokens=False).encode()


def _acts_alone(backend: "RustTokenizer", wrapper: Any) -> bool:
    """Whether ``backend`` gives the results of ``wrapper``; some wrappers also change the text."""
    ids = backend.encode(PROBE, add_special_tokens=True).ids
    if list(wrapper.encode(PROBE, add_special_tokens=True)) != ids:
        return False
    decoded = wrapper.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return bool(decoded == backend.decode(ids, skip_special_tokens=True))


# The bytes of tokens


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE (the encoder of GPT-2).

    A printable Latin-1 character is its own byte. The other bytes follow in order from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


def byte_level(piece: str) -> bytes:
    """Bytes of a byte-level BPE piece; a piece with other characters (an added token) is text."""
    try:
        return bytes(_ALPHABET[character] for character in piece)
    except KeyError:
        return piece.encode()


def byte_fallback(piece: str) -> bytes:
    """Bytes of a sentencepiece piece: ``<0xE2>`` is one byte, U+2581 is a space."""
    match = _BYTE_TOKEN.fullmatch(piece)
    return bytes.fromhex(match[1]) if match else piece.replace(_SPACE, " ").encode()


def joining_of(tokenizer: "RustTokenizer") -> tuple[Joining, Callable[[str], bytes]]:
    """How its tokens join, and the function from a piece of its vocabulary to bytes.

    The tokenizer's decoder declares it. A probe then checks it: if the joined bytes are not the
    text that the decoder makes, the joining is "context".
    """
    joining, to_bytes = _declared(tokenizer)
    if joining != "context" and not _holds(tokenizer, joining, to_bytes):
        return "context", to_bytes
    return joining, to_bytes


def _declared(tokenizer: "RustTokenizer") -> tuple[Joining, Callable[[str], bytes]]:
    steps = _decoder_steps(tokenizer)
    match [step.get("type") for step in steps]:
        case ["ByteLevel"]:
            return "bytes", byte_level
        case ["Replace", "ByteFallback", "Fuse"] if _replaces_space(steps[0]):
            return "bytes", byte_fallback
        case ["Replace", "ByteFallback", "Fuse", "Strip"] if _replaces_space(
            steps[0]
        ) and _strips_one_space(steps[3]):
            return "bytes_less_space", byte_fallback
        case _:
            return "context", byte_fallback


def _decoder_steps(tokenizer: "RustTokenizer") -> list[Mapping[str, Any]]:
    if tokenizer.decoder is None:
        return []
    # The decoder's pickled state is its part of tokenizer.json. Reading the file would be slow.
    state: Mapping[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    return list(state["decoders"]) if state.get("type") == "Sequence" else [state]


def _replaces_space(step: Mapping[str, Any]) -> bool:
    return step.get("pattern") == {"String": _SPACE} and step.get("content") == " "


def _strips_one_space(step: Mapping[str, Any]) -> bool:
    return (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0)


def _holds(tokenizer: "RustTokenizer", joining: Joining, to_bytes: Callable[[str], bytes]) -> bool:
    encoding = tokenizer.encode(PROBE, add_special_tokens=False)
    joined = b"".join(to_bytes(piece) for piece in encoding.tokens)
    if joining == "bytes_less_space":
        joined = joined.removeprefix(b" ")
    text: str = tokenizer.decode(encoding.ids, skip_special_tokens=False)
    return joined.decode("utf-8", errors="replace") == text
