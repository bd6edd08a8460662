"""What the pool does in the background is put down to no request, in the log or elsewhere."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from omlxd.timing import loop_call_later
from tests.support.at_once import AtOnce
from tests.unit.pool.fakes import House, a_model, settle

REQUEST: ContextVar[str | None] = ContextVar("request", default=None)
"""Like the log's own, which holds the id of the request that is being answered."""


async def test_a_timer_does_not_ring_for_the_request_that_set_it() -> None:
    REQUEST.set("r")
    rung: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    loop_call_later(0, lambda: rung.set_result(REQUEST.get()))
    assert await rung is None


async def test_loads_preloads_and_unloads_are_not_of_the_request_that_set_them_off() -> None:
    seen: list[tuple[str, str | None]] = []

    def own_thread(name: str, work: Callable[[], Any]) -> AtOnce:
        seen.append(("read", REQUEST.get()))
        return AtOnce(name, work)

    def usage() -> int:
        seen.append(("weigh", REQUEST.get()))
        return 0

    house = House(a_model("m"), own_thread=own_thread, usage=usage)
    house.engine.on_unload = lambda freed: seen.append(("unload", REQUEST.get()))
    REQUEST.set("r")
    await house.pool.change_settings("m", {"pinned": True})
    await settle()
    assert house.state("m") == "ready"
    await house.pool.unload("m")
    assert [what for what, _ in dict.fromkeys(seen)] == ["read", "weigh", "unload"]
    assert {request for _, request in seen} == {None}
