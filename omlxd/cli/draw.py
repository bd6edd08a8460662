"""Draws numbers for a terminal: bars, tables, sizes, durations. Pure."""

from collections.abc import Sequence

from omlxd.printable import printable
from omlxd.units import format_bytes

BAR = 30


def bar(used: int | None, ceiling: int | None, marks: Sequence[int | None]) -> str:
    """``used`` of ``ceiling`` with a stroke at each mark: ``[#####----|--|]``."""
    if not ceiling:
        return ""
    filled = _place(used or 0, ceiling)
    cells = ["#" if place < filled else "-" for place in range(BAR)]
    for mark in marks:
        if mark is not None:
            cells[min(_place(mark, ceiling), BAR - 1)] = "|"
    over = ">" if (used or 0) > ceiling else "]"
    return "[" + "".join(cells) + over


def _place(size: int, ceiling: int) -> int:
    return min(BAR, round(size / ceiling * BAR))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they must be; those named with a leading ``>`` are right-aligned."""
    titles = [title.removeprefix(">") for title in head]
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = []
    for row in (titles, *rows):
        cells = [
            cell.rjust(width) if title.startswith(">") else cell.ljust(width)
            for title, cell, width in zip(head, row, widths, strict=True)
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def size(number: int | None) -> str:
    return "-" if number is None else format_bytes(number)


def duration(seconds: float | None) -> str:
    """``-``, ``7s``, ``3m 12s``, ``5h 02m``, ``3d 04h``."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def percent(part: float | None, whole: float | None) -> str:
    return "-" if part is None or not whole else f"{part / whole:.0%}"
