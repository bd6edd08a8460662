"""Sizes and durations: constants, and the one way to read and to write them."""

import math
import re

KiB = 1024
MiB = 1024**2
GiB = 1024**3
TiB = 1024**4

_SUFFIXES = {"": 1, "B": 1, "K": KiB, "M": MiB, "G": GiB, "T": TiB}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)


def parse_bytes(text: str | int | float) -> int:
    """A size in bytes from ``12``, ``"512MB"``, ``"1.5GiB"``; every unit is a power of 1024.

    Raises ValueError when it is not a finite, non-negative size.
    """
    if isinstance(text, bool):
        raise ValueError("a size is a number or a text such as '12GB'")
    if isinstance(text, int | float):
        if not math.isfinite(text) or text < 0:
            raise ValueError(f"{text!r} is not a size")
        return int(text)
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write for example '512MB' or '12GB'")
    return int(float(match[1]) * _SUFFIXES[match[2].upper()])


def format_bytes(size: int) -> str:
    """``size`` bytes in the largest fitting unit, one decimal: ``12.3GB`` (powers of 1024)."""
    value = float(abs(size))
    sign = "-" if size < 0 else ""
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1024:
            return f"{sign}{value:.0f}{unit}" if unit == "B" else f"{sign}{value:.1f}{unit}"
        value /= 1024
    return f"{sign}{value:.1f}TB"
