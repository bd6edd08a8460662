"""How deeply JSON text is nested, found without parsing it."""

import re
from itertools import accumulate
from typing import Final

_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_STEPS: Final = bytes.maketrans(b"[{]}", b"\2\2\0\0")
_OTHER: Final = bytes(b for b in range(256) if b not in b"[{]}")


def deeper_than(body: bytes, limit: int) -> bool:
    """Whether arrays and objects are nested more than ``limit`` deep. Any bytes will do."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    steps = _TEXT.sub(b"", body).translate(_STEPS, _OTHER)
    # 2 for an opening, 0 for a closing one: their sum less 1 each is the depth.
    return any(depth > limit for depth in accumulate(step - 1 for step in steps))
