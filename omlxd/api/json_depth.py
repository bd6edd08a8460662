"""How deeply JSON text is nested, found without parsing it."""

import re
from collections.abc import Iterator
from typing import Final

from omlxd.units import KiB

_RUN: Final = re.compile(rb"\[+|\]+")
_ALIKE: Final = bytes.maketrans(b"{}", b"[]")
_OTHER: Final = bytes(b for b in range(256) if b not in b"[]{}")
_SLICE: Final = 128 * KiB
"""One call over more than this would keep every other thread waiting."""
_ROUNDS: Final = 8
"""Each shortens what is left for the loop; none is worth it for little."""
_LITTLE: Final = 100_000


def deeper_than(body: bytes, limit: int) -> bool:
    """Whether arrays and objects are nested more than ``limit`` deep. Of text that is no JSON the
    answer may be off by a few levels. The largest body takes some seconds, so ask in a thread."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    brackets = b"".join(_brackets(body))
    for _ in range(min(_ROUNDS, limit)):
        if len(brackets) < _LITTLE:
            break
        # All innermost pairs at once: every nest is one level less deep.
        brackets = b"".join(_without_pairs(brackets))
        limit -= 1
    depth = 0
    for run in _RUN.finditer(brackets):
        length = run.end() - run.start()
        if brackets[run.start()] == 0x5B:
            depth += length
            if depth > limit:
                return True
        else:
            depth = max(0, depth - length)
    return False


def _brackets(body: bytes) -> Iterator[bytes]:
    """What is left without texts and everything else, with ``[`` and ``]`` for all of them."""
    start, inside = 0, 0
    while start < len(body):
        piece = body[start : start + _SLICE]
        # A backslash belongs to what follows it.
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = body[start : start + _SLICE + 1]
        start += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[inside::2]).translate(_ALIKE, _OTHER)
        inside = (inside + len(parts) - 1) % 2


def _without_pairs(brackets: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(brackets):
        end = start + _SLICE
        # No pair is cut in two.
        end += brackets[end - 1 : end + 1] == b"[]"
        yield brackets[start:end].replace(b"[]", b"")
        start = end
