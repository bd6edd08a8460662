"""Log files: the daemon's rotating log, trimming launchd's log, and reading the end of a log.

A log that cannot be written (disk full, folder gone, no permission) never stops the daemon: the
lines go to the fallback stream, with one message about it, and the file is tried again later.
"""

import contextlib
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from omlxd.service.job import LOG
from omlxd.store import PRIVATE
from omlxd.units import MiB

MOST_BYTES = 10 * MiB
KEPT_FILES = 5
RETRY = 30.0
"""Seconds before a file that failed is tried again."""
TRIM_ABOVE = 4 * MiB
TRIM_KEEP = 1 * MiB
READ_BLOCK = 64 * 1024
POLL = 0.5


@dataclass(frozen=True, slots=True)
class Rotation:
    """At most ``most_bytes`` per file, and ``kept`` older files (NAME.1 is the youngest)."""

    most_bytes: int = MOST_BYTES
    kept: int = KEPT_FILES


class RotatingLog(io.TextIOBase):
    """A text stream to append to. ``write`` and ``flush`` never raise an error of the disk.

    Each ``write`` holds whole records, so rotation never splits one.
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
        # The event loop and the device thread both write.
        self._lock = threading.Lock()
        self.lost = 0
        """How many records the file has missed since its last successful write."""

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
        with self._lock:
            try:
                self._append(data)
            except OSError as error:
                self._fail(error)
                self._say(text)
        return len(text)

    def flush(self) -> None:
        """Does nothing, since every write reaches the system at once."""

    def close(self) -> None:
        with self._lock:
            self._drop_file()
        super().close()

    def _append(self, data: bytes) -> None:
        if self._file is None:
            if self._retry_at is not None and self._clock() < self._retry_at:
                raise OSError("the log file is not tried again yet")
            self._open()
        elif not self._is_current():
            # The file was moved or removed, so further writes to it would be lost.
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
        """Remove a record that a full disk cut off. The fallback gets the whole record."""
        assert self._file is not None
        with contextlib.suppress(OSError):
            # Not if another process has appended since; then the next opening ends the torn line.
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
            # A crash or a full disk tore the last record: end its line.
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
    """The daemon's log in ``folder``. The first record opens the file, so this call cannot fail."""
    return RotatingLog(folder / LOG, fallback, clock=clock)


def trim(path: Path, *, above: int = TRIM_ABOVE, keep: int = TRIM_KEEP) -> int:
    """Keep only the last ``keep`` bytes of ``path`` when it has more than ``above``.

    The file is cut in place: launchd keeps it open in append mode, so after a rename it would write
    to the old file. The end stays, because it may hold the text of a native crash.
    Returns the bytes removed; also 0 when the file is missing or the disk fails.
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
        # Begin with a whole line, unless there is only one line.
        tail = tail.partition(b"\n")[2] or tail
        os.pwrite(descriptor, tail, 0)
        os.ftruncate(descriptor, len(tail))
        return size - len(tail)
    except OSError:
        return 0
    finally:
        os.close(descriptor)


def last_lines(path: Path, count: int) -> list[str]:
    """The last ``count`` lines, without reading the rest. Raises OSError."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        data = b""
        while position > 0 and data.count(b"\n") <= count:
            step = min(READ_BLOCK, position)
            position -= step
            file.seek(position)
            data = file.read(step) + data
    lines = data.decode("utf-8", "replace").splitlines()
    return lines[-count:] if count else []


def follow(path: Path, sleep: Callable[[float], None]) -> Iterator[str]:
    """Yield each text that is appended to ``path`` from now on. Waits for a missing file."""
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
                # The old file still holds the text between the last read and the rotation.
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
