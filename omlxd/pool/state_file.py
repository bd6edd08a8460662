"""A state file of the pool: read and written in threads, the writes in order."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from omlxd.errors import StateUnwritable
from omlxd.store import StateFile

log = structlog.get_logger(__name__)


class BackgroundStateFile:
    """Called on the loop. Without a folder nothing is kept."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._file = StateFile(folder, name)
        self._kept = folder is not None
        self._last: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str | None:
        return self._file.trouble

    async def read(self) -> dict[str, Any]:
        """Like ``StateFile.read``; problems are logged."""
        if not self._kept:
            return {}
        found = await asyncio.to_thread(self._file.read)
        self._report()
        return found

    def write(self, value: Mapping[str, Any]) -> asyncio.Task[None]:
        """Begins after all earlier writes. The task raises OSError; do not cancel it."""
        self._last = asyncio.create_task(self._write(self._last, value), name="state_file")
        self._last.add_done_callback(self._finished)
        return self._last

    async def save(self, change: Mapping[str, Any]) -> None:
        """Wait until the ``change`` is on disk; it is in force already. Raises StateUnwritable."""
        try:
            await asyncio.shield(self.write(change))
        except OSError as error:
            raise StateUnwritable(
                f"The change is in force but will be lost at a restart: {error.strerror}."
            ) from error

    async def flush(self) -> None:
        """Wait until every write has succeeded or failed."""
        if self._last is not None:
            await asyncio.wait([self._last])

    async def _write(self, before: asyncio.Task[None] | None, value: Mapping[str, Any]) -> None:
        if before is not None:
            await asyncio.wait([before])
        if self._kept:
            await asyncio.to_thread(self._file.write, value)

    def _finished(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._report()

    def _report(self) -> None:
        if self.trouble is not None:
            log.error("state_file_trouble", detail=self.trouble)
