"""Keeps the Mac from idle sleep while work is under way, and only then.

A ``caffeinate -i -w PID`` child holds the assertion: it ends with our process, however that
ends. It does not stop the lid, the menu or a low battery from putting the machine to sleep, nor
keeps the display on.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)

CAFFEINATE = "/usr/bin/caffeinate"


class Child(Protocol):
    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


Spawn = Callable[[Sequence[str]], Child]


def spawn_quietly(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """A child without our standard streams. Raises OSError.

    Closing descriptors would rule out posix_spawn on macOS, and a fork copies the page tables of
    the process that holds the models. Ours are not inherited anyway.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
    )


class Awake:
    """Counts what is under way. For the event loop only; nothing here waits but ``close``."""

    def __init__(self, spawn: Spawn | None, pid: int) -> None:
        """``spawn`` None: this machine needs no keeping awake."""
        self._spawn = spawn
        self._command = (CAFFEINATE, "-i", "-w", str(pid))
        self._under_way = 0
        self._child: Child | None = None
        self._ended: list[Child] = []
        self._failed = False

    @property
    def holding(self) -> bool:
        """Whether the machine is being kept awake just now."""
        return self._child is not None and self._child.poll() is None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Awake until the block ends, however it ends."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def hold(self) -> None:
        """One more request or load is under way. Never fails: work goes on without it."""
        self._under_way += 1
        if self._spawn is None or self.holding:
            return
        self._reap()
        try:
            self._child = self._spawn(self._command)
        except OSError as error:
            if not self._failed:
                log.warning("cannot_prevent_sleep", command=CAFFEINATE, error=str(error))
            self._failed = True
        else:
            self._failed = False
            log.debug("sleep_prevented")

    def release(self) -> None:
        """One of them ended."""
        if self._under_way == 0:
            raise RuntimeError("released more often than held")
        self._under_way -= 1
        if self._under_way == 0:
            self._end_child()

    def close(self) -> None:
        """End the child and wait for it, whatever is still under way."""
        self._end_child()
        for child in self._ended:
            try:
                child.wait(1.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._ended = []

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.poll() is None:
            child.terminate()
            log.debug("sleep_allowed")
        self._ended.append(child)
        self._reap()

    def _reap(self) -> None:
        """Collect ended children, so that none stays a zombie for long."""
        self._ended = [child for child in self._ended if child.poll() is None]


def open_awake(pid: int, platform: str = sys.platform) -> Awake:
    """The keeper of this machine: real on macOS, idle elsewhere."""
    return Awake(spawn_quietly if platform == "darwin" else None, pid)
