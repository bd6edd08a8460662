"""Gives leases to those who wait for a model, and takes them back."""

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from omlxd.errors import ModelUnloading, OmlxdError
from omlxd.pool.entry import Loading
from omlxd.pool.failures import replaced, waited_too_long
from omlxd.pool.protocol import PoolPorts
from omlxd.pool.record import Lease, ModelRecord, Waiter

log = structlog.get_logger(__name__)


class Leases:
    """Works on one record at a time; what follows from it is the caller's."""

    def __init__(
        self, ports: PoolPorts, shortage: Callable[[ModelRecord], Mapping[str, Any]]
    ) -> None:
        """``shortage``: the numbers behind a load that waits for memory."""
        self._ports = ports
        self._shortage = shortage

    def grant(self, record: ModelRecord) -> None:
        """As many as there are waiting and the model may serve, first come first served."""
        info = record.info
        while info is not None and record.waiting and record.has_room:
            waiter = record.waiting.popleft()
            if waiter.granted.done():
                continue
            lease = Lease(record.id, waiter.request_id, info, self._ports.engine.submit)
            record.leases.add(lease)
            self._used(record)
            waiter.granted.set_result(lease)

    def leave(self, record: ModelRecord, waiter: Waiter) -> None:
        """The request is gone, whether it waits or holds its lease."""
        granted = waiter.granted
        if granted.done() and not granted.cancelled() and granted.exception() is None:
            self.take_back(record, granted.result())
            return
        granted.cancel()
        if waiter in record.waiting:
            record.waiting.remove(waiter)

    def take_back(self, record: ModelRecord, lease: Lease) -> None:
        """Any number of times; the first counts."""
        lease.end()
        if lease in record.leases:
            record.leases.discard(lease)
            self._used(record)

    def end_all(self, record: ModelRecord) -> None:
        """A deadline has passed: requests end at the next step, before any unload."""
        name = record.id
        self._ports.engine.abort(name, ModelUnloading(f"Model '{name}' was unloaded."))
        log.warning("leases_ended", model=name, leases=len(record.leases))
        for lease in record.leases:
            lease.end()
        record.leases.clear()

    def expire(self, record: ModelRecord, now: float) -> bool:
        """Those who waited until their deadline are told what for; whether there were any.

        Deadlines are for waiting in line: a load that has begun is waited for.
        """
        if isinstance(record.state, Loading):
            return False
        late = [waiter for waiter in record.waiting if waiter.deadline <= now]
        for waiter in late:
            record.waiting.remove(waiter)
            waiter.fail(waited_too_long(record, now - waiter.since, self._shortage))
        return bool(late)

    def fail_waiting(self, record: ModelRecord, error: OmlxdError) -> None:
        """Each gets a copy of its own: an exception raised twice joins its tracebacks."""
        while record.waiting:
            record.waiting.popleft().fail(error.again())

    def fail_replaced(self, record: ModelRecord) -> None:
        """Tokens of the files before mean something else, or nothing, to those of now."""
        for waiter in list(record.waiting):
            error = replaced(record, waiter.made_for)
            if error is not None:
                record.waiting.remove(waiter)
                waiter.fail(error)

    def _used(self, record: ModelRecord) -> None:
        record.last_used = self._ports.clock()
        record.idle_since = record.last_used
