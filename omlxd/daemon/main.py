"""The composition root: builds every part, starts and stops them in order, owns the signals."""

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from omlxd.config.load import Config
from omlxd.daemon.listeners import Listeners
from omlxd.daemon.logs import configure
from omlxd.daemon.process import Instance, ProcessHooks
from omlxd.daemon.signals import ignore_stop_signals, stop_signals
from omlxd.errors import ShuttingDown
from omlxd.host.clock import continuous_clock
from omlxd.host.glibc import bound_free_ends
from omlxd.store import sweep

log = structlog.get_logger(__name__)

EXIT_RESTART = 75
"""A part failed; the supervisor should start us again (EX_TEMPFAIL of sysexits.h)."""
SHORT_WAIT = 0.2
"""Seconds that idle threads still get after the limit."""
THREAD_POLL = 0.01
THREAD_SWITCH = 0.0005
"""Seconds until the device thread gives the interpreter to the loop. With Python's default of 0.005
a small request spends most of its time in this wait."""


def serve(config: Config, listeners: Listeners, instance: Instance, hooks: ProcessHooks) -> int:
    """Run the daemon on ``listeners`` until it is asked to stop. Returns the exit code."""
    faulthandler.enable()
    bound_free_ends()
    sys.setswitchinterval(THREAD_SWITCH)
    configure(config.log, hooks.log)
    if config.strange_variables:
        log.warning("variables_ignored", names=config.strange_variables, reason="not options")
    log.info("listening", url=instance.url, instance=instance.id, version=instance.version)
    try:
        return asyncio.run(Daemon(config, listeners, instance, hooks).run())
    finally:
        # The loop no longer handles signals, and a second one must not interrupt the exit.
        ignore_stop_signals()


class _Countdown:
    """The seconds left of a limit that several steps share."""

    def __init__(self, limit: float) -> None:
        self._end = time.monotonic() + limit

    def __call__(self) -> float:
        return max(0.0, self._end - time.monotonic())


class Daemon:
    """One run of all parts. They stop in the reverse order of their start."""

    def __init__(
        self, config: Config, listeners: Listeners, instance: Instance, hooks: ProcessHooks
    ) -> None:
        self._config = config
        self._listeners = listeners
        self._instance = instance
        self._hooks = hooks
        self._stop_asked = asyncio.Event()
        self._force_exit = asyncio.Event()
        self._died: str | None = None
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._executor = ThreadPoolExecutor(thread_name_prefix="off-loop")

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(self._executor)
        for number in stop_signals():
            loop.add_signal_handler(number, self._signalled, number)
        if self._hooks.stop_asked():
            return 0
        # The start makes no garbage, and collecting would take a third of its time.
        gc.disable()
        # Imported here: the import takes most of the start, and the port listens already.
        from omlxd.daemon.parts import build

        if left := sweep(self._config.paths.state):
            log.info("interrupted_writes_removed", files=left)
        parts = build(
            self._config,
            self._listeners,
            self._instance,
            on_death=self._part_died,
        )
        self._spawn("http", parts.server.serve())
        await parts.server.accepting()
        log.info("answering", after=self._age())
        parts.engine.start()
        self._spawn("enforcer", parts.guard.run())
        self._spawn("start", self._start(parts))
        await self._stop_asked.wait()
        return await self._stop(parts)

    async def _start(self, parts: Any) -> None:
        info = await parts.engine.ready()
        log.info("runtime_ready", backend=info.name, device=info.device_name)
        # The objects of the imports stay. Scanning them at each load and unload would stop every
        # thread for a tenth of a second.
        gc.enable()
        gc.collect()
        gc.freeze()
        await parts.guard.begin()
        await parts.pool.start()
        parts.lifecycle.started()
        log.info("ready", after=self._age())

    def _age(self) -> float:
        """Seconds since the port began to listen."""
        return round(continuous_clock() - self._instance.since, 3)

    async def _stop(self, parts: Any) -> int:
        """Drain, cancel, unload, exit. After the limit it does not wait for a running step."""
        parts.lifecycle.drain()
        config = self._config.server
        if self._died is None:
            if await parts.lifecycle.idle(config.drain_limit, self._force_exit):
                log.info("drained")
            else:
                forced = self._force_exit.is_set()
                log.info("drain_ended_by_signal" if forced else "drain_limit_passed")
        left = _Countdown(config.stop_limit)
        over = ShuttingDown("The server is shutting down.", retry_after=5.0)
        parts.engine.requests.abort_arriving(over)
        parts.engine.requests.abort(None, over)
        await parts.lifecycle.idle(left() / 2, asyncio.Event())
        await self._within(left(), "pool", parts.pool.stop())
        engine_left = await parts.engine.stop(left())
        # The guard runs until nothing else does. Its end closes the streams of its followers.
        self._tasks["enforcer"].cancel()
        parts.server.stop(left())
        http = self._tasks["http"]
        await asyncio.wait({http}, timeout=left())
        parts.sleep_inhibitor.close()
        threads_left = await self._threads_end(left())
        code = 0 if self._died is None else EXIT_RESTART
        log.info("stopped", code=code, died=self._died)
        if not (engine_left and http.done() and threads_left):
            self._listeners.remove_files()
            os._exit(self._hooks.before_exit(code))
        return code

    async def _within(self, limit: float, part: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await asyncio.wait_for(work, limit)
        except TimeoutError:
            log.warning("stop_limit_passed", part=part)

    async def _threads_end(self, limit: float) -> bool:
        """False when a thread is in a call that does not return, such as a read from a volume that
        hangs. The interpreter would wait for it without limit."""
        main = threading.main_thread()
        self._executor.shutdown(wait=False)
        left = _Countdown(max(limit, SHORT_WAIT))
        while busy := [t.name for t in threading.enumerate() if not t.daemon and t is not main]:
            if left() == 0:
                log.warning("threads_left_behind", threads=busy)
                return False
            await asyncio.sleep(THREAD_POLL)
        return True

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a named task; if it dies, the daemon dies too."""
        task = asyncio.create_task(work, name=name)
        self._tasks[name] = task
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or self._stop_asked.is_set():
            return
        error = task.exception()
        if error is not None:
            log.error("task_died", task=task.get_name(), exc_info=error)
            self._die(task.get_name())
        elif task.get_name() == "http":
            log.error("task_ended", task="http")
            self._die("http")

    def _part_died(self, part: str, error: BaseException) -> None:
        log.error("part_died", part=part, exc_info=error)
        self._die(part)

    def _die(self, name: str) -> None:
        self._died = self._died or name
        self._stop_asked.set()

    def _signalled(self, number: int) -> None:
        # A closing terminal sends SIGHUP twice: from its shell and from the kernel.
        if self._stop_asked.is_set() and number != signal.SIGHUP:
            self._force_exit.set()
        self._stop_asked.set()
        log.info("signal", signal=signal.Signals(number).name)
