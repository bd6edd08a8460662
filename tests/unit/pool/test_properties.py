"""For any events of clients, engine, guard, disk and time: nothing is lost, everything ends."""

import asyncio
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from omlxd.errors import ModelLoadFailed, OmlxdError
from omlxd.model_settings.options import ModelSettings
from omlxd.policy.actions import AbortLoads, Action, EvictModel, MarkPendingUnload
from omlxd.pool.options import PoolOptions
from tests.unit.pool.fakes import FakeMachine, House, MiB, Use, a_model, settle

NAMES = ("a", "b", "c")
SIZES = {"a": 100 * MiB, "b": 90 * MiB, "c": 30 * MiB}
TIMES = (0.5, 1, 1.4, 3)
"""A load's true size, as a multiple of the size of its files."""

requests = st.tuples(st.just("request"), st.sampled_from(NAMES))
ends = st.tuples(st.just("load ends"), st.sampled_from(["well", "well", "badly", "progress"]))
events = st.one_of(
    *[requests] * 4,
    *[ends] * 3,
    st.tuples(st.just("finish"), st.integers(0, 5)),
    st.tuples(st.just("disconnect"), st.integers(0, 5)),
    st.tuples(st.just("unload ends"), st.none()),
    st.tuples(st.just("unload"), st.sampled_from(NAMES)),
    st.tuples(st.just("time"), st.sampled_from([0.5, 5.0, 31.0, 301.0])),
    st.tuples(st.just("guard"), st.sampled_from(["unload", "mark", "abort"])),
    st.tuples(st.just("disk"), st.sets(st.sampled_from(NAMES))),
    st.tuples(st.just("replace"), st.sampled_from(NAMES)),
    st.tuples(st.just("pause"), st.booleans()),
    st.tuples(st.just("pin"), st.tuples(st.sampled_from(NAMES), st.sampled_from([True, None]))),
    st.tuples(st.just("at a time"), st.tuples(st.sampled_from(NAMES), st.integers(1, 2))),
    st.tuples(st.just("size"), st.tuples(st.sampled_from(NAMES), st.sampled_from(TIMES))),
    st.tuples(st.just("stop"), st.none()),
)


class World:
    def __init__(self) -> None:
        self.machine = FakeMachine(160 * MiB)
        self.house = House(
            *self._models(set(NAMES)),
            machine=self.machine,
            auto=False,
            options=PoolOptions(
                idle_timeout=200.0, settings={"a": ModelSettings(max_concurrent_requests=2)}
            ),
        )
        self.on_disk: set[str] = set(NAMES)
        self.versions = dict.fromkeys(NAMES, 1)
        self.next_sizes = dict(SIZES)
        self.stopped = False
        self.uses: list[Use] = []
        self.others: list[asyncio.Task[Any]] = []

    def _models(self, names: set[str]) -> list[Any]:
        versions = getattr(self, "versions", dict.fromkeys(NAMES, 1))
        return [a_model(n, size=SIZES[n], fingerprint=str(versions[n])) for n in sorted(names)]

    async def happen(self, kind: str, what: Any) -> None:
        match kind:
            case "request" | "finish" | "disconnect":
                self.client(kind, what)
            case "load ends":
                await self.end_loads(what)
            case "unload ends":
                self.end_unloads()
            case "unload":
                self.others.append(asyncio.create_task(self.house.pool.unload(what)))
            case "time":
                await self.house.time.pass_by(what)
                self.house.pool.check_idle()
            case "guard":
                self.guard(what)
            case "pause":
                self.machine.paused = what
            case "replace" | "disk":
                self.disk(kind, what)
            case _:
                self.operator(kind, what)
        await settle()
        self.check()

    def operator(self, kind: str, what: Any) -> None:
        match kind:
            case "size":
                name, times = what
                self.next_sizes[name] = int(SIZES[name] * times)
            case "stop":
                self.stopped = True
                self.others.append(asyncio.create_task(self.house.pool.stop()))
            case "pin" | "at a time" if not self.stopped:
                name, value = what
                key = "pinned" if kind == "pin" else "max_concurrent_requests"
                self.change(name, key, value)

    def client(self, kind: str, what: Any) -> None:
        if kind == "request":
            self.uses.append(self.house.use(what, f"r{len(self.uses)}"))
        elif self.uses and kind == "finish":
            self.uses[what % len(self.uses)].leave.set()
        elif self.uses:
            self.uses[what % len(self.uses)].task.cancel()

    def disk(self, kind: str, what: Any) -> None:
        if kind == "replace":
            self.versions[what] += 1
        else:
            self.on_disk = what
        self.house.show(*self._models(self.on_disk))

    def guard(self, what: str) -> None:
        for name in NAMES:
            actions: dict[str, Action] = {
                "unload": EvictModel(name, 1),
                "mark": MarkPendingUnload(name),
                "abort": AbortLoads((name,)),
            }
            self.others.append(asyncio.create_task(self.house.pool.apply(actions[what])))

    def change(self, name: str, key: str, value: Any) -> None:
        if name in self.on_disk:
            changing = self.house.pool.change_settings(name, {key: value})
            self.others.append(asyncio.create_task(changing))

    async def end_loads(self, how: str) -> None:
        """The whole size is known before any weights are read."""
        engine = self.house.engine
        for ticket in [ticket for ticket in engine.tickets if not ticket.answer.done()]:
            if not ticket.sized.done():
                ticket.total = engine.sizes[ticket.model_id] = self.next_sizes[ticket.model_id]
                ticket.progress(0)
                await settle()
            if ticket.cancelled:
                ticket.stop()
            elif how == "progress":
                ticket.progress(ticket.total // 2)
            elif how == "well":
                ticket.finish()
            else:
                ticket.fail(ModelLoadFailed("no"))
            await settle()

    def end_unloads(self) -> None:
        for name, answer in self.house.engine.unloads:
            if not answer.done():
                answer.set_result(self.house.engine.sizes[name])

    def check(self) -> None:
        pool, engine = self.house.pool, self.house.engine
        assert self.machine.used() <= self.machine.ceilings.total, "two were promised one memory"
        for view in pool.views():
            if view.unloading:
                assert view.requests == 0, "unloaded while leased"
        states = {status.id: status.state for status in pool.statuses()}
        for name in engine.resident:
            assert states[name] in ("ready", "draining", "unloading", "loading")

    def at_rest(self) -> bool:
        tasks = [*(use.task for use in self.uses), *self.others]
        tickets = self.house.engine.tickets
        return all(task.done() for task in tasks) and all(t.answer.done() for t in tickets)

    async def end(self) -> None:
        """Clients leave, loads and unloads end: then nothing may still be in progress."""
        self.machine.paused = False
        for name in NAMES:
            self.change(name, "pinned", None)
        for _ in range(60):
            for use in self.uses:
                use.leave.set()
            await self.end_loads("well")
            self.end_unloads()
            await self.house.time.pass_by(20)
            if self.at_rest():
                break
        assert all(use.task.done() for use in self.uses), "a request never ended"
        assert all(task.done() for task in self.others), "an unload never ended"
        for use in self.uses:
            if not use.task.cancelled():
                assert use.error is None or isinstance(use.error, OmlxdError), use.error
        for task in self.others:
            error = task.exception()
            assert error is None or isinstance(error, OmlxdError), error
        for status in self.house.pool.statuses():
            assert (status.leases, status.waiting) == (0, 0), "a lease was lost"
        if self.stopped:
            assert self.house.engine.resident == set(), "a model outlived the stop"
        assert self.house.pool._residency.loader.promised() == 0, "a reservation was lost"


@given(st.lists(events, min_size=4, max_size=40), st.tuples(*[st.sampled_from(TIMES)] * len(NAMES)))
@example([("request", "b"), ("request", "c"), ("load ends", "well")] * 2, (1, 1, 3))
def test_every_request_ends_and_nothing_is_lost(
    happenings: list[tuple[str, Any]], times: tuple[float, ...]
) -> None:
    async def run() -> None:
        world = World()
        for sized in zip(NAMES, times, strict=True):
            world.operator("size", sized)
        for kind, what in happenings:
            await world.happen(kind, what)
        await world.end()

    asyncio.run(run())
