"""A state file of the pool: read once, written in the background, in order."""

import asyncio
from pathlib import Path
from typing import Any

import structlog

from omlxd.errors import StateUnwritable
from omlxd.store import DamagedFile, read_json, write_json

log = structlog.get_logger(__name__)


class StateFile:
    """Called on the loop; the disk is touched in threads. Without a folder nothing is kept."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._name = name
        self._path = None if folder is None else folder / name
        self._last: asyncio.Task[None] | None = None
        self.trouble: str | None = None
        """Why the file could not be read or written, for the status."""

    async def read(self) -> Any | None:
        """None without a file, and for one that is damaged or unreadable, which is reported."""
        if self._path is None:
            return None
        try:
            return await asyncio.to_thread(read_json, self._path)
        except DamagedFile as damaged:
            self._report(str(damaged))
        except OSError as error:
            self._report(f"{self._name} cannot be read ({error.strerror})")
        return None

    def write(self, value: Any) -> asyncio.Task[None]:
        """Begins after the writes before it; the task, not to be cancelled, raises OSError."""
        self._last = asyncio.create_task(self._write(self._last, value), name="remember")
        self._last.add_done_callback(self._finished)
        return self._last

    async def keep(self, change: Any) -> None:
        """Returns when the ``change``, which is in force, is on disk. Raises StateUnwritable."""
        try:
            await asyncio.shield(self.write(change))
        except OSError as error:
            raise StateUnwritable(
                f"The change is in force but will be lost at a restart: {error.strerror}."
            ) from error

    async def flush(self) -> None:
        """Wait until everything is on disk, or has failed to be."""
        if self._last is not None:
            await asyncio.wait([self._last])

    async def _write(self, before: asyncio.Task[None] | None, value: Any) -> None:
        if before is not None:
            await asyncio.wait([before])
        if self._path is not None:
            await asyncio.to_thread(write_json, self._path, value)

    def _finished(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            self.trouble = None
        else:
            self._report(f"{self._name} cannot be written ({error})")

    def _report(self, trouble: str) -> None:
        self.trouble = trouble
        log.error("state_file_trouble", detail=trouble)
