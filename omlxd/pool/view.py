"""The models in memory as a decision of the policy sees them."""

from collections.abc import Iterable

from omlxd.policy.readings import ModelView
from omlxd.pool.entry import Draining, Loading, Unloading
from omlxd.pool.protocol import DeviceEngine, ModelActivity
from omlxd.pool.record import ModelRecord


def views(records: Iterable[ModelRecord], engine: DeviceEngine) -> tuple[ModelView, ...]:
    """Those in memory, or on their way there."""
    seen = (view(record, engine.view(record.id)) for record in records)
    return tuple(one for one in seen if one is not None)


def view(record: ModelRecord, activity: ModelActivity) -> ModelView | None:
    """None when it takes no memory.

    In use is what is leased or waited for, and what the device thread has not let go of: only
    then is the memory of requests that were ended free.
    """
    info, state = record.info, record.state
    if info is None and not isinstance(state, Loading):
        return None
    requests = sum(lease.open_requests for lease in record.leases)
    return ModelView(
        id=record.id,
        weights_bytes=info.weights_bytes if info else record.model.weights_bytes,
        kv_bytes=activity.cache_bytes,
        busy=record.busy or activity.held > 0,
        requests=requests,
        pinned=record.pinned,
        last_used=record.last_used,
        loading=isinstance(state, Loading),
        load_aborting=isinstance(state, Loading) and state.cancelling,
        pending_unload=isinstance(state, Draining),
        unloading=isinstance(state, Unloading),
        ending=max(0, activity.held - requests),
    )
