"""What a client's wish that a model be unloaded comes to."""

import asyncio

from omlxd.errors import ModelUnloading
from omlxd.pool.entry import Draining, DrainReason, Loading, Queued, Ready, Unloading
from omlxd.pool.record import ModelRecord
from omlxd.pool.residency import Residency


async def unload(record: ModelRecord, residency: Residency, deadline: float) -> int:
    """Now when idle, else when drained, at the latest by ``deadline``; the bytes freed."""
    record.preload = False
    if isinstance(record.state, Queued | Loading):
        error = f"Model '{record.id}' was asked to be unloaded."
        residency.fail_waiting(record, ModelUnloading(error, retry_after=None))
        residency.advance()
        return 0
    if not isinstance(record.state, Ready | Draining | Unloading):
        return 0
    freed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    record.unloaded.append(freed)
    residency.drain(record, DrainReason.REQUESTED, deadline)
    residency.advance()
    return await freed
