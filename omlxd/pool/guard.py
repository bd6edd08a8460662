"""Carries out what the memory guard asks of the models; refuses what has become wrong."""

import asyncio
import math
from typing import Any

from omlxd.errors import MemoryPressureAborted, OmlxdError
from omlxd.policy.actions import AbortLoads, Action, ActionOutcome, EvictModel, MarkPendingUnload
from omlxd.pool.entry import Draining, DrainReason, Loading, Ready, Unloading
from omlxd.pool.options import PoolOptions
from omlxd.pool.protocol import PoolPorts
from omlxd.pool.record import ModelRecord
from omlxd.pool.residency import Residency
from omlxd.timing import pause

ONE_POLL = 1.0
"""Seconds; an unload that takes longer is left in flight."""


async def apply(
    action: Action,
    residency: Residency,
    options: PoolOptions,
    ports: PoolPorts,
    load_error: OmlxdError | None = None,
) -> ActionOutcome:
    """What became of ``action``; actions that are not about models are not accepted."""
    match action:
        case EvictModel(model_id=model_id):
            return await _unload(action, model_id, residency, ports)
        case MarkPendingUnload(model_id=model_id):
            return _mark(action, model_id, residency, options, ports)
        case AbortLoads(model_ids=model_ids):
            error = load_error or _load_aborted()
            records = [residency.records.get(name) for name in model_ids]
            taken = [_abort_load(record, residency, error) for record in records]
            return ActionOutcome(action, accepted=any(taken), in_flight=any(taken))
        case _:
            return ActionOutcome(action, accepted=False)


async def _unload(
    action: EvictModel, model_id: str, residency: Residency, ports: PoolPorts
) -> ActionOutcome:
    record = residency.records.get(model_id)
    if record is None or record.busy or record.pinned:
        return ActionOutcome(action, accepted=False)
    if not isinstance(record.state, Ready | Unloading):
        return ActionOutcome(action, accepted=False)
    freed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    record.unloaded.append(freed)
    residency.drain(record, DrainReason.PRESSURE, ports.clock())
    over = asyncio.ensure_future(pause(ports.call_later, ONE_POLL))
    either: tuple[asyncio.Future[Any], ...] = (freed, over)
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    over.cancel()
    if not freed.done():
        return ActionOutcome(action, in_flight=True)
    return ActionOutcome(action, freed=freed.result())


def _mark(
    action: MarkPendingUnload,
    model_id: str,
    residency: Residency,
    options: PoolOptions,
    ports: PoolPorts,
) -> ActionOutcome:
    record = residency.records.get(model_id)
    if record is None or record.pinned or not isinstance(record.state, Ready | Draining):
        return ActionOutcome(action, accepted=False)
    news = isinstance(record.state, Ready) or record.state.deadline == math.inf
    if news:
        residency.drain(record, DrainReason.PRESSURE, ports.clock() + options.drain_deadline)
    residency.advance()
    return ActionOutcome(action, accepted=news, in_flight=isinstance(record.state, Unloading))


def _abort_load(record: ModelRecord | None, residency: Residency, error: OmlxdError) -> bool:
    if record is None or not isinstance(record.state, Loading) or record.state.cancelling:
        return False
    record.load_aborted = error
    residency.cancel_load(record)
    residency.fail_waiting(record, error)
    return True


def _load_aborted() -> MemoryPressureAborted:
    return MemoryPressureAborted(
        "Loading the model was stopped to keep the machine from running out of memory.",
        retry_after=10.0,
    )
