"""The guard's memory of itself: who comes late, and who leaves."""

import asyncio
from types import SimpleNamespace
from typing import Any

from omlxd.enforcer.record import Entry, Record


def an_entry() -> Entry:
    decision: Any = SimpleNamespace(actions=())
    reading: Any = None
    return Entry(0, 0.0, 0.0, 0.0, 1, decision, reading, (), changed=True)


async def test_who_follows_after_the_end_gets_what_is_kept_and_is_let_go() -> None:
    record = Record()
    record.add(an_entry(), begins=True)
    record.close()
    async with asyncio.timeout(5):
        assert [entry.number async for entry in record.follow(replay=True)] == [1]
        assert [entry async for entry in record.follow()] == []


async def test_the_close_loses_no_news_that_a_follower_has_not_read() -> None:
    record = Record()
    following = record.follow()
    first = asyncio.create_task(anext(following))
    await asyncio.sleep(0)
    for _ in range(3):
        record.add(an_entry(), begins=True)
    record.close()
    async with asyncio.timeout(5):
        numbers = [(await first).number] + [entry.number async for entry in following]
    assert numbers == [1, 2, 3]
