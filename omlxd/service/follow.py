"""Reads the end of a log file and follows it through rotation and trimming."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

BLOCK = 64 * 1024
POLL = 0.5


def last_lines(path: Path, count: int) -> list[str]:
    """The last ``count`` lines, without reading the rest. Raises OSError."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        data = b""
        while position > 0 and data.count(b"\n") <= count:
            step = min(BLOCK, position)
            position -= step
            file.seek(position)
            data = file.read(step) + data
    lines = data.decode("utf-8", "replace").splitlines()
    return lines[-count:] if count else []


def follow(path: Path, sleep: Callable[[float], None]) -> Iterator[str]:
    """Each text appended to ``path`` from now on; waits for the file when it is missing."""
    file = _open_at_end(path)
    try:
        while True:
            text = file.read() if file is not None else b""
            if text:
                yield text.decode("utf-8", "replace")
                continue
            sleep(POLL)
            if file is None:
                file = _open(path)
            elif _was_replaced(path, file):
                # What was written between the last read and the rotation is still in the old one.
                rest = file.read()
                file.close()
                file = _open(path)
                if rest:
                    yield rest.decode("utf-8", "replace")
            elif os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)
    finally:
        if file is not None:
            file.close()


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def _open_at_end(path: Path) -> BinaryIO | None:
    file = _open(path)
    if file is not None:
        file.seek(0, os.SEEK_END)
    return file


def _was_replaced(path: Path, file: BinaryIO) -> bool:
    try:
        return not os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
