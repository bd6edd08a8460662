"""An event loop with virtual time: when no work is left, it jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

TICK = 1e-6
"""Seconds. A shorter time would be lost in the rounding of sums."""
MOST_ROUNDS = 100_000
"""Turns of the loop at one instant; code that needs more spins."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Timers fire in order without waiting, and work for a thread runs in the caller.

    So every run is the same, even on a busy machine.
    """

    def __init__(self, start: float = 10_000.0) -> None:
        self._virtual = start
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._virtual

    def pass_time(self, seconds: float) -> None:
        self._virtual += seconds

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the future carries it
            future.set_exception(error)
        return future


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._rounds = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            self._rounds += 1
            assert self._rounds < MOST_ROUNDS, "the loop spins and time does not pass"
            return ready
        if timeout is None:
            raise AssertionError("everything waits and nothing will ever happen")
        self._rounds = 0
        self._loop.pass_time(max(timeout, TICK))
        return []


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end on its own loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
