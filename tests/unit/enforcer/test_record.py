"""The record of decisions: listeners that come late, and listeners that leave."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from omlxd.enforcer.record import Entry, Record
from omlxd.policy.decision import Decision
from omlxd.policy.eviction import Eviction
from omlxd.units import GiB
from tests.unit.enforcer.test_executor import CUSTOM, decision


def an_entry() -> Entry:
    decision: Any = SimpleNamespace(actions=())
    return Entry(0, 0.0, 0.0, 0.0, 1, decision, (), changed=True)


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


def a_record() -> tuple[Record, Decision]:
    made = decision(GiB, CUSTOM)
    record = Record()
    record.add(Entry(0, 1.0, 1.0, 100.0, 1, made, (), changed=False), begins=True)
    return record, made


EVICTION = Eviction(for_model="b", model_id="a", bytes=2 * GiB)


async def test_an_eviction_for_a_load_is_one_entry_that_is_told_twice() -> None:
    """Evictions that make room for a load are entries too."""
    record, made = a_record()
    following = record.follow()
    first = asyncio.create_task(anext(following))
    await asyncio.sleep(0)
    record.add_eviction(EVICTION, 2.0, 101.0)
    record.add_eviction(replace(EVICTION, freed=3 * GiB), 5.0, 104.0)
    record.close()
    told = [await first] + [entry async for entry in following]
    assert [(e.number, e.eviction and e.eviction.freed) for e in told] == [(2, None), (2, 3 * GiB)]
    (_, entry) = record.entries
    assert entry == told[1]
    assert (entry.unix_at, entry.last_unix_at, entry.eventful) == (101.0, 104.0, True)
    assert (entry.decision.rule, entry.decision.actions) == ("room_for_load", ())
    assert entry.decision.memory is made.memory
    assert "'a' has left to make room for the load of 'b'" in entry.decision.reason
    assert record.last is record.entries[0], "the guard itself has decided nothing new"


def test_a_model_that_need_not_leave_after_all_is_told_to_have_stayed() -> None:
    record, _ = a_record()
    record.add_eviction(EVICTION, 2.0, 101.0)
    record.add_eviction(replace(EVICTION, freed=0), 3.0, 102.0)
    record.add_eviction(EVICTION, 4.0, 103.0)
    (_, stayed, again) = record.entries
    assert "did not have to leave" in stayed.decision.reason
    assert (again.number, again.eviction) == (3, EVICTION)


def test_ticks_that_repeat_are_one_entry_though_a_model_leaves_between_them() -> None:
    record, made = a_record()
    record.add_eviction(EVICTION, 2.0, 101.0)
    record.add(Entry(0, 3.0, 3.0, 102.0, 1, made, (), changed=False), begins=True)
    assert [(entry.number, entry.times) for entry in record.entries] == [(1, 2), (2, 1)]
    record.add_eviction(replace(EVICTION, freed=GiB), 4.0, 103.0)
    assert [entry.eviction and entry.eviction.freed for entry in record.entries] == [None, GiB]


def test_before_the_first_decision_there_is_nothing_to_tell() -> None:
    record = Record()
    record.add_eviction(EVICTION, 2.0, 101.0)
    assert record.entries == ()
