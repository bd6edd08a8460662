"""The tokenizers in memory. Requests share one load of each, on a thread of its own."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, Final

import structlog

from omlxd.errors import ModelLoadFailed, OmlxdError
from omlxd.library.catalog import CatalogModel
from omlxd.pool.failures import told_again, without_paths
from omlxd.pool.record import ModelRecord
from omlxd.pool.states import Queued
from omlxd.text.own_thread import OwnThread
from omlxd.text.protocol import Tokenizer

log = structlog.get_logger(__name__)

RETRY_AFTER: Final = 10.0
"""Seconds until unreadable files are read again; not every request reads them."""


class TokenizerCache:
    """Tokenizers by fingerprint, so that a replaced model gets a new one.

    A failure is kept until a load succeeds or the files change. For ``RETRY_AFTER`` seconds it is
    raised again without another try."""

    def __init__(
        self,
        load: Callable[[str], Tokenizer],
        limit: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        own_thread: Callable[[str, Callable[[], Any]], OwnThread[Any]] = OwnThread,
    ) -> None:
        """``limit``: seconds after which no request waits for a load that hangs."""
        self._load = load
        self._limit = limit
        self._clock = clock
        self._own_thread = own_thread
        self._loads: dict[str, OwnThread[Tokenizer]] = {}
        self._failed: dict[str, tuple[OmlxdError, float]] = {}
        """By fingerprint, with the time from which it is tried again."""

    async def get(self, model: CatalogModel) -> Tokenizer:
        """Raises the loader's errors without the folder's path, and ModelLoadFailed after the
        limit.

        A load goes on after the limit, and no second thread is started for it.
        """
        self._raise_known_failure(model)
        load = self._loads.get(model.fingerprint) or self._begin(model)
        # The load belongs to no caller: when one leaves, the others go on waiting.
        await asyncio.wait({load.result}, timeout=max(0.0, self._limit - load.age))
        if load.result.done():
            # ``_finished`` has noted a failure before the waiting callers continue.
            self._raise_known_failure(model)
            return load.result.result()
        log.warning("tokenizer_hangs", model=model.id, age=round(load.age, 1))
        raise ModelLoadFailed(
            f"Reading the tokenizer of model '{model.id}' takes longer than {self._limit:g} s "
            "(option models.tokenizer_limit); the volume it is on may be asleep or disconnected.",
            retry_after=RETRY_AFTER,
            limit=self._limit,
        )

    def failure(self, model: CatalogModel) -> tuple[OmlxdError, float] | None:
        """Why the last try failed, and the seconds until the next one."""
        if (kept := self._failed.get(model.fingerprint)) is None:
            return None
        return kept[0], max(0.0, kept[1] - self._clock())

    def forget_failures(self, *, but: Iterable[str]) -> None:
        """``but``: the fingerprints of all models that exist."""
        known = set(but)
        self._failed = {key: kept for key, kept in self._failed.items() if key in known}

    def retain(self, fingerprints: Iterable[str]) -> None:
        """Forget all other tokenizers; requests that hold one keep it."""
        kept = set(fingerprints)
        for fingerprint, load in list(self._loads.items()):
            if load.result.done() and fingerprint not in kept:
                del self._loads[fingerprint]

    def _begin(self, model: CatalogModel) -> OwnThread[Tokenizer]:
        load = self._own_thread(f"tokenizer {model.id}", lambda: self._load(model.path))
        self._loads[model.fingerprint] = load
        load.result.add_done_callback(lambda done: self._finished(model, done))
        load.start()
        return load

    def _finished(self, model: CatalogModel, result: asyncio.Future[Tokenizer]) -> None:
        error = None if result.cancelled() else result.exception()
        if error is None and not result.cancelled():
            self._failed.pop(model.fingerprint, None)
            return
        self._loads.pop(model.fingerprint, None)
        if isinstance(error, OmlxdError):
            why = without_paths(error, model)
            self._failed[model.fingerprint] = (why, self._clock() + RETRY_AFTER)

    def _raise_known_failure(self, model: CatalogModel) -> None:
        match self.failure(model):
            case why, left if left > 0:
                raise told_again(why, retry_after=left)


class PreloadTokenizers:
    """Reads the tokenizer before a model is preloaded: without it no request could use the model.

    Requests read it themselves before they ask for the model.
    """

    def __init__(
        self,
        tokenizers: TokenizerCache,
        fail: Callable[[ModelRecord, OmlxdError], object],
        ended: Callable[[], None],
    ) -> None:
        """``fail`` marks the load as failed; ``ended`` is called after each try."""
        self._tokenizers = tokenizers
        self._fail = fail
        self._ended = ended
        self._reading: dict[str, asyncio.Task[None]] = {}

    def is_read(self, record: ModelRecord) -> bool:
        """Whether it was read; if not, reading starts. A failure counts as a failed load."""
        if record.tokenizer_read == record.model.fingerprint:
            return True
        if record.id not in self._reading:
            name = f"tokenizer of {record.id}"
            # Not in the context of a request, because no request waits for it.
            self._reading[record.id] = asyncio.create_task(
                self._try(record), name=name, context=Context()
            )
        return False

    async def _try(self, record: ModelRecord) -> None:
        error: OmlxdError | None = None
        model = record.model
        try:
            await self._tokenizers.get(model)
        except OmlxdError as known:
            error = known
        except Exception as fault:
            # The boundary of this task: a fault in one tokenizer must not end the pool.
            log.exception("tokenizer_fault", model=record.id)
            error = ModelLoadFailed(f"Reading the tokenizer failed: {fault!r}.")
        else:
            record.tokenizer_read = model.fingerprint
        finally:
            del self._reading[record.id]
        # Requests that came in the meantime have read it themselves and have its error.
        alone = isinstance(record.state, Queued) and not record.waiting
        if error is not None and alone and record.model is model:
            self._fail(record, error)
        self._ended()
