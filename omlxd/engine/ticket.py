"""What the device thread owes the event loop: single answers, and loads with their progress."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from omlxd.engine.messages import ModelInfo
from omlxd.errors import OmlxdError

T = TypeVar("T")


class Reply(Generic[T]):
    """A value or an error to come. Any number may wait; giving up waiting changes nothing."""

    def __init__(self) -> None:
        self._future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # An answer that nobody waits for any more is no fault to be warned of.
        self._future.add_done_callback(lambda f: f.cancelled() or f.exception())

    @property
    def given(self) -> bool:
        return self._future.done()

    def give(self, value: T) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: OmlxdError) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    async def wait(self) -> T:
        return await asyncio.shield(self._future)


class LoadTicket:
    """A load under way. Byte counts are None until its first piece is in."""

    def __init__(self, load_id: int, model_id: str, cancel: Callable[[int], None]) -> None:
        self.load_id = load_id
        self.model_id = model_id
        self.loaded_bytes: int | None = None
        self.total_bytes: int | None = None
        self.answer: Reply[ModelInfo] = Reply()
        self.sized: Reply[int] = Reply()
        self._cancel = cancel

    async def result(self) -> ModelInfo:
        """Facts of the loaded model; any number may wait, and giving up waiting cancels nothing.

        Raises ModelLoadFailed, ModelBroken, ModelLoadCancelled, ShuttingDown or EngineDied.
        """
        return await self.answer.wait()

    async def size(self) -> int:
        """Bytes of the whole, as soon as they are known; no answer when the load ends before."""
        return await self.sized.wait()

    def cancel(self) -> None:
        """Stop at the next piece; no effect on a load that has ended."""
        if not self.answer.given:
            self._cancel(self.load_id)
