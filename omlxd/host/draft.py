"""A memory reading while it is being put together: each number with its source."""

from types import MappingProxyType
from typing import Any

from omlxd.policy.readings import MemoryReading, OsPressure, Source


class ReadingDraft:
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
        """Set ``field`` of the reading; None leaves it unknown and without a source."""
        if value is None:
            return
        self._values[field] = value
        self._sources[field] = Source(source, self._taken_at if taken_at is None else taken_at)

    def degrade(self, line: str) -> None:
        """Note a source that failed and what replaces it."""
        if line not in self._degraded:
            self._degraded.append(line)

    def finish(self) -> MemoryReading:
        return MemoryReading(
            taken_at=self._taken_at,
            sources=MappingProxyType(dict(self._sources)),
            degraded=tuple(self._degraded),
            **self._values,
        )
