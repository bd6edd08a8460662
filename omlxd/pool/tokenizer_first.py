"""Nothing is preloaded whose tokenizer cannot be read: no request could use it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context

import structlog

from omlxd.errors import ModelLoadFailed, OmlxdError
from omlxd.library.catalog import CatalogModel
from omlxd.pool.entry import Queued
from omlxd.pool.record import ModelRecord

log = structlog.get_logger(__name__)

ReadTokenizer = Callable[[CatalogModel], Awaitable[object]]
"""Raises OmlxdError where it cannot be read."""


class TokenizerFirst:
    """Requests read it themselves, before they ask for the model."""

    def __init__(
        self,
        read: ReadTokenizer,
        fail: Callable[[ModelRecord, OmlxdError], object],
        ended: Callable[[], None],
    ) -> None:
        """``fail`` makes it a failed load; ``ended`` is called after each, read or not."""
        self._read = read
        self._fail = fail
        self._ended = ended
        self._reading: dict[str, asyncio.Task[None]] = {}

    def is_read(self, record: ModelRecord) -> bool:
        """Otherwise that is begun; failing counts as a failed load."""
        if record.tokenizer_read == record.model.fingerprint:
            return True
        if record.id not in self._reading:
            name = f"tokenizer of {record.id}"
            # No request's context: none waits for it.
            self._reading[record.id] = asyncio.create_task(
                self._try(record), name=name, context=Context()
            )
        return False

    async def _try(self, record: ModelRecord) -> None:
        error: OmlxdError | None = None
        model = record.model
        try:
            await self._read(model)
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
        # Who asked for it meanwhile was told by their own read.
        alone = isinstance(record.state, Queued) and not record.waiting
        if error is not None and alone and record.model is model:
            self._fail(record, error)
        self._ended()
