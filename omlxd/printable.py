"""Text from elsewhere (names and contents of files) as any answer, log or terminal can hold it."""


def printable(text: str) -> str:
    """``text`` with escapes for what is no character of its own: lone surrogates, which cannot be
    encoded, and controls, which a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
