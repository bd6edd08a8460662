"""Finds the folders of models and scans each on its own thread, because a volume may hang."""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from omlxd.errors import ConfigError
from omlxd.library.catalog import Catalog, RootScan, RootState, RootStatus, keep_unread, merge
from omlxd.library.folder import HeaderCache
from omlxd.library.scan import scan_root
from omlxd.printable import printable
from omlxd.timing import CallLater, Timer

log = structlog.get_logger(__name__)

VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
"""Environment variables with the place of the Hugging Face cache; a service keeps them all."""
HANGS = 5
"""Scans that reach the time limit on one thread before another thread is started."""
MOST_ABANDONED = 3
"""Threads of one root that may hang on a volume that is gone."""

Scan = Callable[[str, HeaderCache], RootScan]


def model_roots(
    dirs: Sequence[str] | None, own: Path, environ: Mapping[str, str]
) -> tuple[Path, ...]:
    """The folders to look for models in.

    They are the configured ``dirs`` and then ``own``, the folder that models are pulled into.
    Without ``dirs`` they are ``own`` and the Hugging Face cache. Raises ConfigError for the home
    (``~name``) of a user that does not exist.
    """
    try:
        if dirs is not None:
            named = (Path(name).expanduser().absolute() for name in dirs)
            return tuple(dict.fromkeys((*named, own)))
        return own, hub_cache(environ)
    except RuntimeError as error:
        if dirs is not None:
            raise ConfigError([f"models.dirs: {error}"]) from None
        by = {name: environ[name] for name in VARIABLES if environ.get(name)}
        raise ConfigError([f"the Hugging Face cache, by {by}: {error}"]) from None


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps models. Reads the same variables without importing it."""
    if named := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(named).expanduser()
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = environ.get("HF_HOME") or f"{cache}/huggingface"
    return Path(home).expanduser() / "hub"


class RootScanner:
    """Scans one root. While a scan hangs, later scans join it. After ``HANGS`` of them a new thread
    is started, because the volume may come back while the old thread hangs for ever."""

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
        """Start a scan, or join the running one. The future never fails."""
        if self._hangs >= HANGS and self._abandoned < MOST_ABANDONED:
            log.warning("scan_abandoned", root=self.path)
            self._abandoned += 1
            self._headers = HeaderCache()
            self._end_scan()
        if self._running is None:
            self._running = asyncio.get_running_loop().create_future()
            arguments = (self._running, self._headers)
            threading.Thread(
                target=self._work, args=arguments, name=f"scan {self.path}", daemon=True
            ).start()
        return self._running

    def hangs(self, limit: float) -> None:
        """The time limit has passed: keep the known models until the thread returns."""
        if self._running is None:
            return
        self._hangs += 1
        detail = (
            f"Reading it takes longer than {limit:g} s; the volume may be asleep, "
            "disconnected, or waiting for a permission prompt."
        )
        self._adopt(replace(self.latest, status=RootStatus(self._shown, RootState.HANGING, detail)))

    def _work(self, scan: asyncio.Future[None], headers: HeaderCache) -> None:
        try:
            result = self._scan(self.path, headers)
        except Exception as fault:
            # The thread's boundary; the fault is shown in the status.
            log.exception("scan_fault", root=self.path)
            status = RootStatus(self._shown, RootState.FAILED, f"Reading failed: {fault!r}.")
            result = RootScan(status)
        try:
            scan.get_loop().call_soon_threadsafe(self._finished, scan, result)
        except RuntimeError:
            # The loop is closed: the daemon stopped while the volume hung.
            return

    def _finished(self, scan: asyncio.Future[None], result: RootScan) -> None:
        if scan is not self._running:
            # This scan was abandoned, and its result is old.
            self._abandoned -= 1
            return
        self._adopt(keep_unread(self.latest, result))
        self._end_scan()

    def _end_scan(self) -> None:
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
    """Scans all roots; ``changed`` gets the merged catalog after each scan of a root."""

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
    def first_scan_over(self) -> bool:
        return all(root.latest.status.state is not RootState.SCANNING for root in self._roots)

    def scan_every(self, every: float | None) -> None:
        """Scan all roots now, and again each ``every`` seconds; None: only now."""
        self.begin()
        if every is not None:
            self._next = self._call_later(every, lambda: self.scan_every(every))

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def begin(self) -> list[asyncio.Future[None]]:
        """Scan all roots now; each future ends with its scan, or at the time limit."""
        return [self._begin(root) for root in self._roots]

    async def scan(self) -> Catalog:
        """Returns when every root was read or has reached the time limit."""
        await asyncio.gather(*(self._scan_anew(root) for root in self._roots))
        return self.catalog()

    async def _scan_anew(self, root: RootScanner) -> None:
        """Wait for a new scan: a running one may have missed changes from just before the call."""
        if root.busy:
            await self._begin(root)
            if root.hanging:
                return
        await self._begin(root)

    def _begin(self, root: RootScanner) -> asyncio.Future[None]:
        scan = root.begin()
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
        scan.add_done_callback(lambda _: end())
        return ended

    def _merge(self) -> None:
        self._changed(self.catalog())
