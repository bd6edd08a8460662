"""Draws for a terminal: sizes, durations, bars, tables and progress."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from omlxd.printable import printable
from omlxd.units import format_bytes

BAR = 30


def bar(used: int | None, ceiling: int | None, marks: Sequence[int | None]) -> str:
    """``used`` of ``ceiling``, with a stroke at each mark: ``[#####----|--|]``."""
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
    """Columns as wide as their content. A title that begins with ``>`` aligns to the right."""
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


REDRAW = 0.2
"""Seconds between two drawings on a terminal."""
LINE_SHARE = 0.1
"""Without a terminal, one line is printed each time that this share of the whole is done."""
WINDOW = 10.0
"""Seconds over which the speed is averaged."""


class Progress:
    """One bar. ``add`` may be called often; it is drawn only now and then."""

    def __init__(
        self,
        label: str,
        total: int | None,
        *,
        done: int = 0,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._marks = [(clock(), done)]
        self._drawn_at: float | None = None
        self._drawn_share = 0.0
        self._drawn: str | None = None
        self.total = total
        self.done = done

    def add(self, count: int) -> None:
        self.at(self.done + count)

    def at(self, done: int, total: int | None = None) -> None:
        """``done`` is the amount now; ``total`` is given when it has become known."""
        self.done = done
        self.total = self.total if total is None else total
        now = self._clock()
        if self._is_due(now):
            self._marks.append((now, done))
            while len(self._marks) > 2 and now - self._marks[1][0] > WINDOW:
                self._marks.pop(0)
            self._draw(now)

    def end(self) -> None:
        """Draw the last state, and end the line."""
        if self._drawn != self._text():
            self._draw(self._clock())
        if self._out.isatty():
            self._out.write("\n")
            self._out.flush()

    def _is_due(self, now: float) -> bool:
        if self._out.isatty():
            return self._drawn_at is None or now - self._drawn_at >= REDRAW
        return self.total is not None and self._share() - self._drawn_share >= LINE_SHARE

    def _share(self) -> float:
        return self.done / self.total if self.total else 0.0

    def _draw(self, now: float) -> None:
        self._drawn_at, self._drawn_share = now, self._share()
        self._drawn = self._text()
        line = f"\r{self._drawn}\x1b[K" if self._out.isatty() else f"{self._drawn}\n"
        self._out.write(line)
        self._out.flush()

    def _text(self) -> str:
        if self.total is None:
            return f"{self._label}  {size(self.done)}"
        parts = [self._label, f"{size(self.done)} of {size(self.total)}"]
        if self._out.isatty():
            parts.insert(1, bar(self.done, self.total, ()))
        parts.append(percent(self.done, self.total))
        speed = self._speed()
        if speed and self.done < self.total:
            parts += [f"{size(int(speed))}/s", f"{duration((self.total - self.done) / speed)} left"]
        return "  ".join(parts)

    def _speed(self) -> float | None:
        (began, first), (ended, last) = self._marks[0], self._marks[-1]
        return (last - first) / (ended - began) if ended > began else None
