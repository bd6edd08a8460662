"""Work that may never return, in a daemon thread of its own."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import structlog

log = structlog.get_logger(__name__)

T = TypeVar("T")


def _nobody(_: "OwnThread[Any]") -> None:
    pass


class OwnThread(Generic[T]):
    """One piece of work. It uses no shared thread pool and never delays the process's exit."""

    def __init__(
        self,
        name: str,
        work: Callable[[], T],
        ended: Callable[["OwnThread[Any]"], None] = _nobody,
    ) -> None:
        """Call this on the event loop. ``ended`` is called there before the result is set."""
        self._name = name
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._on_end = ended
        self._started_at = self._loop.time()
        self.result: asyncio.Future[T] = self._loop.create_future()
        """Cancelled when no caller waits for it any more."""

    @property
    def age(self) -> float:
        return self._loop.time() - self._started_at

    def start(self) -> None:
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        try:
            made = self._work()
        except Exception as error:  # noqa: BLE001 - the task that waits for the result raises it
            self._report(None, error)
        else:
            self._report(made, None)

    def _report(self, made: T | None, error: Exception | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, made, error)
        except RuntimeError:
            log.debug("thread_outlived_loop", thread=self._name)

    def _settle(self, made: Any, error: Exception | None) -> None:
        self._on_end(self)
        if self.result.done():
            return
        if error is None:
            self.result.set_result(made)
        else:
            self.result.set_exception(error)
