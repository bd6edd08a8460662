"""The daemon's own rotating log file, and the trimming of the one that launchd never rotates.

A log that cannot be written (disk full, folder gone, no permission) never stops the daemon: the
lines go to the fallback stream, their loss is said once, and the file is tried again later.
"""

import contextlib
import io
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from omlxd.service.names import LOG
from omlxd.store import PRIVATE
from omlxd.units import MiB

MOST_BYTES = 10 * MiB
KEPT_FILES = 5
RETRY = 30.0
"""Seconds before a file that failed is tried again."""
TRIM_ABOVE = 4 * MiB
TRIM_KEEP = 1 * MiB


@dataclass(frozen=True, slots=True)
class Rotation:
    """``most_bytes`` a file; ``kept`` older files beside it (NAME.1 is the youngest)."""

    most_bytes: int = MOST_BYTES
    kept: int = KEPT_FILES


class RotatingLog(io.TextIOBase):
    """A text stream to append to; ``write`` and ``flush`` never raise for the disk's sake.

    Each ``write`` is one whole record or several, so that none is torn by rotation.
    """

    def __init__(
        self,
        path: Path,
        fallback: TextIO | None,
        *,
        rotation: Rotation = Rotation(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._path = path
        self._fallback = fallback
        self._rotation = rotation
        self._clock = clock
        self._file: io.FileIO | None = None
        self._size = 0
        self._retry_at: float | None = None
        # Records come from the loop and from the device thread.
        self._turn = threading.Lock()
        self.lost = 0
        """Records that the file did not get since it last worked."""

    @property
    def path(self) -> Path:
        return self._path

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        if not text:
            return 0
        data = text.encode("utf-8", "backslashreplace")
        with self._turn:
            try:
                self._append(data)
            except OSError as error:
                self._fail(error)
                self._say(text)
        return len(text)

    def flush(self) -> None:
        """Nothing is held back: every write reaches the system at once."""

    def close(self) -> None:
        with self._turn:
            self._drop_file()
        super().close()

    def _append(self, data: bytes) -> None:
        if self._file is None:
            if self._retry_at is not None and self._clock() < self._retry_at:
                raise OSError("the log file is not tried again yet")
            self._open()
        elif not self._is_current():
            # Someone moved or removed the file: write to a new one, not to a ghost.
            self._drop_file()
            self._open()
        if self._size and self._size + len(data) > self._rotation.most_bytes:
            self._rotate()
        before = self._size
        try:
            self._put(data)
            if self.lost:
                self._put(b'{"event": "log_records_lost", "count": %d}\n' % self.lost)
        except OSError:
            self._cut_to(before)
            raise
        self.lost, self._retry_at = 0, None

    def _cut_to(self, size: int) -> None:
        """Take back what a full disk took of a record; the fallback has it whole."""
        assert self._file is not None
        with contextlib.suppress(OSError):
            # Not when another process has appended: what is torn then ends at the next opening.
            if os.fstat(self._file.fileno()).st_size == self._size:
                os.ftruncate(self._file.fileno(), size)

    def _put(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        while view:
            written = self._file.write(view) or 0
            self._size += written
            view = view[written:]

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, PRIVATE)
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, PRIVATE)
        self._file = io.FileIO(descriptor, "ab")
        self._size = os.fstat(descriptor).st_size
        if self._size and os.pread(descriptor, 1, self._size - 1) != b"\n":
            # Torn by a crash or a full disk: the next record gets a line of its own.
            self._put(b"\n")

    def _is_current(self) -> bool:
        assert self._file is not None
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def _rotate(self) -> None:
        """NAME.4 -> NAME.5, ..., NAME -> NAME.1, then a new NAME."""
        self._drop_file()
        for index in range(self._rotation.kept, 0, -1):
            source = self._numbered(index - 1)
            with contextlib.suppress(FileNotFoundError):
                os.replace(source, self._numbered(index))
        self._open()

    def _numbered(self, index: int) -> Path:
        return self._path if index == 0 else self._path.with_name(f"{self._path.name}.{index}")

    def _drop_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _fail(self, error: OSError) -> None:
        self.lost += 1
        if self._file is not None or self._retry_at is None or self._clock() >= self._retry_at:
            self._drop_file()
            self._retry_at = self._clock() + RETRY
        if self.lost == 1:
            self._say(
                f"omlxd: the log file {self._path} cannot be written ({error}); "
                "its records come here until it can\n"
            )

    def _say(self, text: str) -> None:
        if self._fallback is None:
            return
        with contextlib.suppress(OSError, ValueError):
            self._fallback.write(text)
            self._fallback.flush()


def open_log(
    folder: Path, fallback: TextIO | None, *, clock: Callable[[], float] = time.monotonic
) -> RotatingLog:
    """The daemon's log in ``folder``; opened at the first record, so this cannot fail."""
    return RotatingLog(folder / LOG, fallback, clock=clock)


def trim(path: Path, *, above: int = TRIM_ABOVE, keep: int = TRIM_KEEP) -> int:
    """Cut ``path`` in place to its last ``keep`` bytes when it has more than ``above``.

    In place, because launchd keeps the file open in append mode: after a rename it would go on
    writing to the old one. The tail stays, as it may hold the text of a native crash.
    Returns the bytes removed; 0 also when the file is missing or the disk refuses.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        size = os.fstat(descriptor).st_size
        if size <= above:
            return 0
        tail = os.pread(descriptor, keep, size - keep)
        # From a whole line on, unless the one line is all there is.
        tail = tail.partition(b"\n")[2] or tail
        os.pwrite(descriptor, tail, 0)
        os.ftruncate(descriptor, len(tail))
        return size - len(tail)
    except OSError:
        return 0
    finally:
        os.close(descriptor)
