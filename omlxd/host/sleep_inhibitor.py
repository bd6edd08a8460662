"""Prevents idle sleep of the Mac, but only while work is running.

A ``caffeinate -i -w PID`` child holds the power assertion. It ends with our process, even when our
process crashes. The lid, the menu and a low battery still put the machine to sleep, and the display
may turn off.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
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
    """Start a child without our standard streams. Raises OSError."""
    # With close_fds Python cannot use posix_spawn on macOS, and a fork copies the page tables of
    # the process that holds the models. Our descriptors are not inheritable anyway.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
    )


class SleepInhibitor:
    """Call ``update`` on the event loop each time that work begins or ends."""

    def __init__(self, working: Callable[[], bool], spawn: Spawn | None, pid: int) -> None:
        """``spawn``: None if this machine needs no inhibitor; then ``working`` is never called."""
        self._working = working
        self._spawn = spawn
        self._command = (CAFFEINATE, "-i", "-w", str(pid))
        self._child: Child | None = None
        self._ended: list[Child] = []
        self._failed = False

    @property
    def holding(self) -> bool:
        """Whether the machine is kept awake now."""
        return self._child is not None and self._child.poll() is None

    def update(self) -> None:
        """Keep the machine awake if any work is running, else let it sleep.

        Never waits and never fails: without the inhibitor the work still goes on.
        """
        if self._spawn is None:
            return
        if not self._working():
            self._end_child()
        elif not self.holding:
            self._start_child(self._spawn)

    def close(self) -> None:
        """End the child and wait for it, even if work is still running."""
        self._end_child()
        for child in self._ended:
            try:
                child.wait(1.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._ended = []

    def _start_child(self, spawn: Spawn) -> None:
        self._reap()
        try:
            self._child = spawn(self._command)
        except OSError as error:
            if not self._failed:
                log.warning("cannot_prevent_sleep", command=CAFFEINATE, error=str(error))
            self._failed = True
        else:
            self._failed = False
            log.debug("sleep_prevented")

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
        """Collect ended children, so that no child stays a zombie for long."""
        self._ended = [child for child in self._ended if child.poll() is None]


def open_sleep_inhibitor(
    working: Callable[[], bool], platform: str = sys.platform
) -> SleepInhibitor:
    """The inhibitor of this machine: real on macOS, idle elsewhere."""
    return SleepInhibitor(working, spawn_quietly if platform == "darwin" else None, os.getpid())
