"""How deeply JSON text is nested, found without parsing it."""

import re
from typing import Final

_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_RUN: Final = re.compile(rb"\[+|\]+")
_ALIKE: Final = bytes.maketrans(b"{}", b"[]")
_OTHER: Final = bytes(b for b in range(256) if b not in b"[]{}")
_ROUNDS: Final = 8
"""Each shortens what is left for the loop; none is worth it for little."""
_LITTLE: Final = 100_000


def deeper_than(body: bytes, limit: int) -> bool:
    """Whether arrays and objects are nested more than ``limit`` deep. Of text that is no JSON the
    answer may be off by a few levels. The largest body takes some seconds, so ask in a thread."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    brackets = _TEXT.sub(b"", body).translate(_ALIKE, _OTHER)
    for _ in range(min(_ROUNDS, limit)):
        if len(brackets) < _LITTLE:
            break
        # All innermost pairs at once: every nest is one level less deep.
        brackets = brackets.replace(b"[]", b"")
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
