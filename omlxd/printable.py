"""Makes text from outside (names and contents of files) safe for answers, logs and terminals."""

import unicodedata
from typing import Final

_OBEYED: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TURNS: Final = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
"""Characters that change the direction of the text around them."""


def printable(text: str) -> str:
    """``text`` with escapes for lone surrogates, which cannot be encoded, and for controls, which a
    terminal would obey."""
    if is_printable(text):
        return text
    return "".join(c if is_printable(c) else c.encode("unicode_escape").decode() for c in text)


def is_printable(text: str) -> bool:
    """Whether all of ``text`` can be shown unchanged. Unlike ``str.isprintable``, it accepts wide
    spaces, joined emoji and characters of private use."""
    return text.isprintable() or not any(
        c in _TURNS or unicodedata.category(c) in _OBEYED for c in text
    )
