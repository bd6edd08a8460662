"""Scans the roots on threads of their own, so that a hanging volume holds up nobody."""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from omlxd.library.catalog import Catalog, RootScan, RootState, RootStatus, keep_unread, merge
from omlxd.library.folder import HeaderCache
from omlxd.library.scan import scan_root
from omlxd.printable import printable
from omlxd.timing import CallLater, Timer

log = structlog.get_logger(__name__)

HANGS = 5
"""Looks that ran out of time at one thread before another one is tried."""
MOST_ABANDONED = 3
"""Threads of one root that may hang on a volume which is gone."""

Scan = Callable[[str, HeaderCache], RootScan]


class RootScanner:
    """One root. While a look at it hangs others join it, and only after long does a new one begin:
    the volume may be back while the thread never is."""

    def __init__(self, path: str, scan: Scan, changed: Callable[[], None]) -> None:
        self.path = path
        self._shown = printable(path)
        self.latest = RootScan(RootStatus(self._shown, RootState.SCANNING))
        self._scan = scan
        self._changed = changed
        self._headers = HeaderCache()
        self._running: asyncio.Future[None] | None = None
        self._hangs = self._abandoned = 0

    @property
    def busy(self) -> bool:
        return self._running is not None

    @property
    def hanging(self) -> bool:
        return self.busy and self.latest.status.state is RootState.HANGING

    def begin(self) -> asyncio.Future[None]:
        """A look that has begun is joined. The future never fails."""
        if self._hangs >= HANGS and self._abandoned < MOST_ABANDONED:
            log.warning("scan_abandoned", root=self.path)
            self._abandoned += 1
            self._headers = HeaderCache()
            self._end_look()
        if self._running is None:
            self._running = asyncio.get_running_loop().create_future()
            arguments = (self._running, self._headers)
            threading.Thread(
                target=self._work, args=arguments, name=f"scan {self.path}", daemon=True
            ).start()
        return self._running

    def hangs(self, limit: float) -> None:
        """The time is over: what was known stays, until the thread comes back."""
        if self._running is None:
            return
        self._hangs += 1
        detail = (
            f"Reading it takes longer than {limit:g} s; the volume may be asleep, "
            "disconnected, or waiting for a permission prompt."
        )
        self._adopt(replace(self.latest, status=RootStatus(self._shown, RootState.HANGING, detail)))

    def _work(self, look: asyncio.Future[None], headers: HeaderCache) -> None:
        try:
            result = self._scan(self.path, headers)
        except Exception as fault:
            # The thread's boundary; the fault is shown in the status.
            log.exception("scan_fault", root=self.path)
            status = RootStatus(self._shown, RootState.FAILED, f"Reading failed: {fault!r}.")
            result = RootScan(status)
        try:
            look.get_loop().call_soon_threadsafe(self._finished, look, result)
        except RuntimeError:
            # The loop is closed: the daemon has stopped while the volume hung.
            return

    def _finished(self, look: asyncio.Future[None], result: RootScan) -> None:
        if look is not self._running:
            # It was abandoned, and what it saw is old.
            self._abandoned -= 1
            return
        self._adopt(keep_unread(self.latest, result))
        self._end_look()

    def _end_look(self) -> None:
        running, self._running = self._running, None
        self._hangs = 0
        if running is not None and not running.done():
            running.set_result(None)

    def _adopt(self, scan: RootScan) -> None:
        if scan.status != self.latest.status and scan.status.state is not RootState.OK:
            log.warning(
                "model_root_unavailable",
                root=self.path,
                state=scan.status.state.value,
                detail=scan.status.detail,
            )
        self.latest = scan
        self._changed()


class Scanner:
    """All roots, in order; ``changed`` gets the joined catalogue after each look at one."""

    def __init__(
        self,
        roots: Sequence[str | os.PathLike[str]],
        limit: float,
        call_later: CallLater,
        changed: Callable[[Catalog], None],
        *,
        scan: Scan = scan_root,
    ) -> None:
        self._limit = limit
        self._next: Timer | None = None
        self._call_later = call_later
        self._changed = changed
        paths = dict.fromkeys(os.path.abspath(root) for root in roots)
        self._roots = [RootScanner(path, scan, self._merge) for path in paths]

    def catalog(self) -> Catalog:
        return merge([root.latest for root in self._roots])

    @property
    def first_look_over(self) -> bool:
        return all(root.latest.status.state is not RootState.SCANNING for root in self._roots)

    def keep_looking(self, every: float | None) -> None:
        """Look at all roots now, and again each ``every`` seconds; None: only now."""
        self.begin()
        if every is not None:
            self._next = self._call_later(every, lambda: self.keep_looking(every))

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def begin(self) -> list[asyncio.Future[None]]:
        """Look at all roots now; each future ends with its look, or at the time limit."""
        return [self._begin(root) for root in self._roots]

    async def scan(self) -> Catalog:
        """Returns when every root was read or ran out of time."""
        await asyncio.gather(*(self._look_anew(root) for root in self._roots))
        return self.catalog()

    async def _look_anew(self, root: RootScanner) -> None:
        """A look that has begun already may have missed what was changed just before the call."""
        if root.busy:
            await self._begin(root)
            if root.hanging:
                return
        await self._begin(root)

    def _begin(self, root: RootScanner) -> asyncio.Future[None]:
        look = root.begin()
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer: Timer

        def end() -> None:
            timer.cancel()
            if not ended.done():
                ended.set_result(None)

        def give_up() -> None:
            root.hangs(self._limit)
            end()

        timer = self._call_later(self._limit, give_up)
        look.add_done_callback(lambda _: end())
        return ended

    def _merge(self) -> None:
        self._changed(self.catalog())
