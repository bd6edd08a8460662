"""The bytes each token of a tokenizers' tokenizer stands for, and how they join to a text."""

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

Joining = Literal["bytes", "bytes_less_space", "context"]
"""As in the Protocol of the text side."""

PROBE = "Hello, wörld!  Příliš žluťoučký kůň\n\n\t你好 😀 👨‍👩‍👧 a <n> \u2581 .,\r\n x"
"""Whatever a decoder may do to a text beyond joining bytes shows in here."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

_SPACE = "\u2581"


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the other bytes
    follow in order from U+0100 (the encoder of GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


def byte_level(piece: str) -> bytes:
    """Bytes of a byte-level BPE piece; one with foreign characters (an added token) is its text."""
    try:
        return bytes(_ALPHABET[character] for character in piece)
    except KeyError:
        return piece.encode()


def byte_fallback(piece: str) -> bytes:
    """Bytes of a sentencepiece piece: ``<0xE2>`` is one byte, U+2581 a space."""
    match = _BYTE_TOKEN.fullmatch(piece)
    return bytes.fromhex(match[1]) if match else piece.replace(_SPACE, " ").encode()


def joining_of(tokenizer: "RustTokenizer") -> tuple[Joining, Callable[[str], bytes]]:
    """How its tokens join, and the function from a piece of its vocabulary to bytes.

    Read from the tokenizer's decoder and then tried out: where a text does not come back as
    the decoder makes it, the joining is "context".
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
    # The decoder's pickled state is its part of tokenizer.json; the whole file would be slow.
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
