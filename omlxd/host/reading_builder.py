"""Builds a memory reading: each number with its source, and fallbacks for failed sources."""

import os
from types import MappingProxyType
from typing import Any

import psutil

from omlxd.policy.readings import MemoryReading, OsPressure, Source


class ReadingBuilder:
    def __init__(self, taken_at: float, total: int, source: str) -> None:
        self._taken_at = taken_at
        self._values: dict[str, Any] = {"total": total}
        self._sources = {"total": Source(source, taken_at)}
        self._degraded: list[str] = []

    def put(
        self,
        field: str,
        value: int | OsPressure | None,
        source: str,
        taken_at: float | None = None,
    ) -> None:
        """Set ``field`` of the reading. With None it stays unknown and has no source."""
        if value is None:
            return
        self._values[field] = value
        self._sources[field] = Source(source, self._taken_at if taken_at is None else taken_at)

    def degrade(self, line: str) -> None:
        """Note that a source failed, and what replaces it."""
        if line not in self._degraded:
            self._degraded.append(line)

    def finish(self) -> MemoryReading:
        return MemoryReading(
            taken_at=self._taken_at,
            sources=MappingProxyType(dict(self._sources)),
            degraded=tuple(self._degraded),
            **self._values,
        )


def psutil_available() -> int | None:
    """The available bytes according to psutil; None when psutil fails too."""
    try:
        return int(psutil.virtual_memory().available)
    except (psutil.Error, OSError, RuntimeError):
        # psutil's C layer raises RuntimeError when a kernel call fails.
        return None


def physical_memory() -> int:
    """Installed memory in bytes, from sysconf(3). Raises ValueError or OSError when unknown."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size <= 0:
        raise OSError("sysconf does not know the size of the memory")
    return size
