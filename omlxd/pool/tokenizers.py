"""The tokenizers in memory: one load for all who ask at once, in a thread."""

import asyncio
from collections.abc import Callable, Iterable

from omlxd.pool.catalog import CatalogModel
from omlxd.text.protocol import Tokenizer


class TokenizerCache:
    """By fingerprint, so that a replaced model gets its own. Failures are not kept."""

    def __init__(self, load: Callable[[str], Tokenizer]) -> None:
        self._load = load
        self._tasks: dict[str, asyncio.Task[Tokenizer]] = {}

    async def get(self, model: CatalogModel) -> Tokenizer:
        """Raises what the loader raises."""
        task = self._tasks.get(model.fingerprint)
        if task is None:
            task = asyncio.create_task(
                asyncio.to_thread(self._load, model.path), name=f"tokenizer {model.id}"
            )
            self._tasks[model.fingerprint] = task
            task.add_done_callback(lambda done: self._finished(model.fingerprint, done))
        # One caller's disconnection must not end the load of the others.
        return await asyncio.shield(task)

    def retain(self, fingerprints: Iterable[str]) -> None:
        """Forget all others; who holds one keeps it."""
        kept = set(fingerprints)
        for fingerprint, task in list(self._tasks.items()):
            if task.done() and fingerprint not in kept:
                del self._tasks[fingerprint]

    def _finished(self, fingerprint: str, task: asyncio.Task[Tokenizer]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._tasks.pop(fingerprint, None)
