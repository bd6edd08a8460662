"""Timers of the event loop."""

import asyncio
from contextvars import ContextVar

from omlxd.timing import Alarm, loop_call_later
from tests.unit.pool.fakes import FakeTime

REQUEST: ContextVar[str | None] = ContextVar("request", default=None)
"""Like the log's own variable, which has the id of the current request."""


async def test_the_last_alarm_counts_and_one_set_to_the_same_time_stays() -> None:
    time = FakeTime()
    rings: list[float] = []
    alarm = Alarm(time.clock, time.call_later, lambda: rings.append(time.now))
    alarm.set(time.now + 5)
    alarm.set(time.now + 9)
    alarm.set(time.now + 9)
    await time.pass_by(20)
    assert rings == [1009.0]
    alarm.set(time.now - 3)
    alarm.set(None)
    await time.pass_by(20)
    assert rings == [1009.0]


async def test_a_timer_does_not_ring_for_the_request_that_set_it() -> None:
    REQUEST.set("r")
    rung: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    loop_call_later(0, lambda: rung.set_result(REQUEST.get()))
    assert await rung is None
