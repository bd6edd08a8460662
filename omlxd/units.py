"""Sizes: constants, and the one way to read and to write them."""

import math
import re

KiB = 1024
MiB = 1024**2
GiB = 1024**3
TiB = 1024**4

_SUFFIXES = {"": 1, "B": 1, "K": KiB, "M": MiB, "G": GiB, "T": TiB}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(i?B)?\s*", re.A | re.I)


def parse_bytes(text: str | int | float) -> int:
    """A size in bytes from ``"512MB"``, ``"1.5GiB"``, ``"100B"``; units are powers of 1024.

    Raises ValueError when it is no finite size from 0 on, or has no unit. Only 0 needs no unit:
    24 hardly means 24 bytes.
    """
    match = None if isinstance(text, bool) else _SIZE.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a size; write for example '512MB' or '12GB'")
    size = float(match[1]) * _SUFFIXES[match[2].upper()]
    if not math.isfinite(size):
        raise ValueError("that is more than any size")
    if size and not match[2] and not match[3]:
        raise ValueError(f"{text!r} is a size without a unit: give one, as in '24GB'")
    return int(size)


def format_bytes(size: int) -> str:
    """``size`` bytes in the largest fitting unit, one decimal: ``12.3GB`` (powers of 1024)."""
    value = float(abs(size))
    sign = "-" if size < 0 else ""
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1024:
            return f"{sign}{value:.0f}{unit}" if unit == "B" else f"{sign}{value:.1f}{unit}"
        value /= 1024
    return f"{sign}{value:.1f}TB"
