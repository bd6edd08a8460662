"""A model in memory as a decision of the policy sees it."""

from omlxd.policy.readings import ModelView
from omlxd.pool.entry import Draining, Loading, Unloading
from omlxd.pool.protocol import ModelActivity
from omlxd.pool.record import ModelRecord


def view(record: ModelRecord, activity: ModelActivity) -> ModelView | None:
    """None when it takes no memory.

    In use is what is leased or waited for: every request holds a lease, and the counts of
    the device thread are those of its latest step, which an idle model never corrects.
    """
    facts, state = record.facts, record.state
    if facts is None and not isinstance(state, Loading):
        return None
    return ModelView(
        id=record.id,
        weights_bytes=facts.weights_bytes if facts else record.model.weights_bytes,
        kv_bytes=activity.cache_bytes,
        busy=record.busy,
        requests=sum(lease.open_requests for lease in record.leases),
        pinned=record.pinned,
        last_used=record.last_used,
        loading=isinstance(state, Loading),
        load_aborting=isinstance(state, Loading) and state.cancelling,
        pending_unload=isinstance(state, Draining),
        unloading=isinstance(state, Unloading),
    )
