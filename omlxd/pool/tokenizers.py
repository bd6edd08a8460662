"""The tokenizers in memory: one load for all who ask at once, each in a thread of its own."""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from omlxd.errors import ModelLoadFailed
from omlxd.pool.catalog import CatalogModel
from omlxd.text.own_thread import OwnThread
from omlxd.text.protocol import Tokenizer

log = structlog.get_logger(__name__)

_RETRY_AFTER = 10.0


class TokenizerCache:
    """By fingerprint, so that a replaced model gets its own. Failures are not kept."""

    def __init__(self, load: Callable[[str], Tokenizer], limit: float) -> None:
        """``limit``: seconds after which a load that hangs is not waited for any more."""
        self._load = load
        self._limit = limit
        self._loads: dict[str, OwnThread[Tokenizer]] = {}

    async def get(self, model: CatalogModel) -> Tokenizer:
        """Raises what the loader raises, and ModelLoadFailed past the limit.

        A load past it goes on, and no second thread is started beside it.
        """
        load = self._loads.get(model.fingerprint) or self._begin(model)
        # Waiting does not own the load: one caller's leaving ends it for nobody else.
        await asyncio.wait({load.result}, timeout=max(0.0, self._limit - load.age))
        if load.result.done():
            return load.result.result()
        log.warning("tokenizer_hangs", model=model.id, age=round(load.age, 1))
        raise ModelLoadFailed(
            f"Reading the tokenizer of model '{model.id}' takes longer than {self._limit:g} s "
            "(option models.tokenizer_limit); the volume it is on may be asleep or disconnected.",
            retry_after=_RETRY_AFTER,
            limit=self._limit,
        )

    def retain(self, fingerprints: Iterable[str]) -> None:
        """Forget all others; who holds one keeps it."""
        kept = set(fingerprints)
        for fingerprint, load in list(self._loads.items()):
            if load.result.done() and fingerprint not in kept:
                del self._loads[fingerprint]

    def _begin(self, model: CatalogModel) -> OwnThread[Tokenizer]:
        load = OwnThread(f"tokenizer {model.id}", lambda: self._load(model.path))
        self._loads[model.fingerprint] = load
        load.result.add_done_callback(lambda done: self._finished(model.fingerprint, done))
        load.start()
        return load

    def _finished(self, fingerprint: str, result: asyncio.Future[Tokenizer]) -> None:
        if result.cancelled() or result.exception() is not None:
            self._loads.pop(fingerprint, None)
