"""The engine on the loop, over a runtime in plain Python on a real thread."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from omlxd.backend.sequence import FinishReason, NewToken
from omlxd.engine.handle import Engine, Generation, PromptProgress, RequestPhase, TokensArrived
from omlxd.engine.options import EngineOptions
from omlxd.errors import (
    EngineDied,
    GenerationFailed,
    MemoryPressureAborted,
    ModelBroken,
    ModelLoadCancelled,
    ModelUnloading,
    OmlxdError,
    QueueFull,
    ShuttingDown,
)
from tests.support.fake_backend import FakeBackend, FakeClock, fake_token, sequence


class Rig:
    def __init__(self, clock: FakeClock | None = None, **options: float) -> None:
        self.clock = clock or FakeClock()
        self.backend = FakeBackend(self.clock)
        self.deaths: list[BaseException] = []
        self.engine = Engine(
            self.backend,
            EngineOptions(**options),  # type: ignore[arg-type]
            self.clock,
            on_death=self.deaths.append,
        )

    def close_gate(self) -> threading.Event:
        """Make the device thread stop before its next step or piece."""
        self.backend.gate = threading.Event()
        return self.backend.gate

    async def at_gate(self) -> None:
        assert await asyncio.to_thread(self.backend.at_gate.wait, 10)


class FaultyClock(FakeClock):
    """Once switched on, it raises on every thread except the device thread."""

    broken = False

    def __call__(self) -> float:
        if self.broken and threading.current_thread().name != "mlx":
            raise OSError("injected")
        return super().__call__()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig(max_concurrent=2, max_waiting=1)
    rig.engine.start()
    await rig.engine.ready()
    yield rig
    if rig.backend.gate is not None:
        rig.backend.gate.set()
    assert await rig.engine.stop(10)


async def tokens_of(generation: Generation) -> list[NewToken]:
    tokens: list[NewToken] = []
    async for event in generation:
        if isinstance(event, TokensArrived):
            tokens += event.tokens
    return tokens


async def test_a_request_streams_progress_and_tokens_and_ends(rig: Rig) -> None:
    await rig.engine.load("m", "/m").result()
    generation = rig.engine.submit("m", sequence("a", (7, 8, 9), max_tokens=3))
    events = [event async for event in generation]
    assert isinstance(events[0], PromptProgress)
    tokens = [t for e in events if isinstance(e, TokensArrived) for t in e.tokens]
    assert [t.token for t in tokens] == [fake_token((7, 8, 9), n) for n in range(3)]
    assert [t.finish for t in tokens] == [None, None, FinishReason.LENGTH]
    assert (generation.prompt_tokens, generation.completion_tokens) == (3, 3)
    assert generation.over
    assert rig.engine.requests.views() == ()


async def test_the_device_thread_is_named_and_the_only_one_to_touch_the_backend(rig: Rig) -> None:
    assert rig.backend.thread is not None
    assert rig.backend.thread.name == "mlx"


async def test_a_load_reports_bytes_and_facts(rig: Rig) -> None:
    ticket = rig.engine.load("m", "/m")
    assert ticket.total_bytes is None
    assert await ticket.size() == 3000
    info = await ticket.result()
    assert info.weights_bytes == 3000
    assert (ticket.loaded_bytes, ticket.total_bytes) == (3000, 3000)


async def test_a_broken_model_says_so_and_leaves_nothing(rig: Rig) -> None:
    rig.backend.plan("/m").load_error = ModelBroken("model.safetensors is truncated")
    rig.backend.plan("/m").load_error_at = 2
    with pytest.raises(ModelBroken, match="truncated"):
        await rig.engine.load("m", "/m").result()
    sample = await rig.engine.sample()
    assert (sample.active, sample.buffer_cache) == (0, 0)


async def test_a_cancelled_load_ends_at_the_next_piece(rig: Rig) -> None:
    gate = rig.close_gate()
    ticket = rig.engine.load("m", "/m")
    await rig.at_gate()
    ticket.cancel()
    ticket.cancel()
    gate.set()
    with pytest.raises(ModelLoadCancelled):
        await ticket.result()
    assert rig.backend.trail.count(("piece", "/m")) == 1
    assert rig.backend.weights == 0


async def test_unload_says_what_came_free_and_ends_requests(rig: Rig) -> None:
    await rig.engine.load("m", "/m").result()
    generation = rig.engine.submit("m", sequence("a", max_tokens=10**9))
    assert isinstance(await anext(generation), PromptProgress)
    freed = await rig.engine.unload("m")
    assert freed >= 3000
    with pytest.raises(ModelUnloading):
        await tokens_of(generation)
    with pytest.raises(ModelUnloading):
        await tokens_of(rig.engine.submit("m", sequence("b")))
    assert await rig.engine.unload("m") == 0


def phase_in(rig: Rig, request_id: str) -> RequestPhase | None:
    """The phase of a request on the device thread; None before the thread has received it."""
    batches = rig.backend.models["/m"].batches
    batch = batches[0] if batches else None
    if batch is None or not batch.said:
        return None
    if batch.said.get(request_id):
        return RequestPhase.DECODE
    if request_id not in batch.sequences:
        return RequestPhase.QUEUED
    return RequestPhase.PREFILL if batch.done[request_id] else None


@pytest.mark.parametrize("phase", [RequestPhase.QUEUED, RequestPhase.PREFILL, RequestPhase.DECODE])
async def test_a_cancel_acts_at_the_next_step_whatever_the_phase(
    rig: Rig, phase: RequestPhase
) -> None:
    """T42"""
    await rig.engine.load("m", "/m").result()
    gate = threading.Event()

    def stop_in_phase(what: str, path: str) -> None:
        if phase_in(rig, "v") is phase:
            rig.backend.gate = gate

    rig.backend.on = stop_in_phase
    others = [rig.engine.submit("m", sequence(f"o{n}", max_tokens=100)) for n in range(2)]
    if phase is not RequestPhase.QUEUED:
        others.pop().cancel()
    prompt = range(1000) if phase is RequestPhase.PREFILL else (1, 2)
    victim = rig.engine.submit("m", sequence("v", tuple(prompt), max_tokens=10**9))
    await rig.at_gate()
    assert victim.phase is phase
    victim.cancel()
    victim.cancel(GenerationFailed("too late"))
    assert await asyncio.wait_for(tokens_of(victim), 10) == []
    held = rig.engine.view("m").held
    gate.set()
    await victim.closed()
    assert rig.engine.view("m").held < held
    assert "v" not in {r.id for r in rig.engine.requests.views()}
    assert len(await tokens_of(others[0])) == 100
    assert rig.engine.view("m").cache_bytes == 0


async def test_a_cancelled_request_raises_the_error_it_was_given(rig: Rig) -> None:
    await rig.engine.load("m", "/m").result()
    generation = rig.engine.submit("m", sequence("a", max_tokens=10**9))
    await anext(generation)
    assert rig.engine.abort("other", MemoryPressureAborted("x")) == 0
    assert rig.engine.abort(None, MemoryPressureAborted("no memory")) == 1
    assert rig.engine.abort(None, MemoryPressureAborted("no memory")) == 0
    with pytest.raises(MemoryPressureAborted):
        await tokens_of(generation)
    await generation.closed()


async def test_a_full_queue_refuses_at_once(rig: Rig) -> None:
    await rig.engine.load("m", "/m").result()
    rig.close_gate()
    for n in range(3):
        rig.engine.submit("m", sequence(f"r{n}"))
    with pytest.raises(QueueFull) as refused:
        rig.engine.submit("m", sequence("r3"))
    assert refused.value.retry_after
    rig.engine.submit("other", sequence("r4"))


async def test_a_failing_step_fails_its_requests_and_the_next_one_works(rig: Rig) -> None:
    """T15, T43"""
    await rig.engine.load("m", "/m").result()
    rig.backend.plan("/m").step_error = RuntimeError("injected")
    with pytest.raises(GenerationFailed, match="injected"):
        await tokens_of(rig.engine.submit("m", sequence("a")))
    assert len(await tokens_of(rig.engine.submit("m", sequence("b")))) == 4
    assert rig.deaths == []


async def test_the_death_of_the_thread_ends_everything_with_an_error() -> None:
    rig = Rig()
    rig.engine.start()
    await rig.engine.ready()
    await rig.engine.load("m", "/m").result()
    rig.backend.plan("/m").step_error = EngineDied("the device is lost")
    generation = rig.engine.submit("m", sequence("a"))
    with pytest.raises(EngineDied):
        await tokens_of(generation)
    await generation.closed()
    assert await rig.engine.stop(10)
    assert [str(d) for d in rig.deaths] == ["the device is lost"]
    assert rig.backend.stopped
    with pytest.raises(EngineDied):
        rig.engine.submit("m", sequence("b"))
    with pytest.raises(EngineDied):
        rig.engine.load("n", "/n")
    with pytest.raises(EngineDied):
        await rig.engine.sample()


async def test_a_runtime_that_cannot_start_is_a_death() -> None:
    rig = Rig()
    rig.backend.start_error = ImportError("no runtime")
    rig.engine.start()
    with pytest.raises(EngineDied):
        await rig.engine.ready()
    assert await rig.engine.stop(10)
    assert isinstance(rig.deaths[0], ImportError)


async def test_stop_ends_requests_and_loads_with_shutting_down() -> None:
    rig = Rig()
    rig.engine.start()
    await rig.engine.load("m", "/m").result()
    gate = rig.close_gate()
    generation = rig.engine.submit("m", sequence("a"))
    await rig.at_gate()
    ticket = rig.engine.load("n", "/n")
    assert await rig.engine.stop(0.0) is False
    gate.set()
    assert await rig.engine.stop(10) is True
    with pytest.raises(ShuttingDown):
        await tokens_of(generation)
    with pytest.raises(ShuttingDown):
        await ticket.result()
    with pytest.raises(ShuttingDown):
        rig.engine.submit("m", sequence("b"))
    assert (rig.backend.stopped, rig.backend.weights, rig.deaths) == (True, 0, [])


async def test_views_show_each_request_with_phase_and_age(rig: Rig) -> None:
    await rig.engine.load("m", "/m").result()
    gate = rig.close_gate()
    for n in range(3):
        rig.engine.submit("m", sequence(f"r{n}"))
    await rig.at_gate()
    rig.clock.advance(2.5)
    views = rig.engine.requests.views()
    assert [(v.id, v.phase, v.age, v.prompt_total) for v in views] == [
        (f"r{n}", RequestPhase.QUEUED, 2.5, 3) for n in range(3)
    ]
    gate.set()


async def test_a_slow_reader_gets_every_token_joined(rig: Rig) -> None:
    await rig.engine.load("m", "/m").result()
    generation = rig.engine.submit("m", sequence("a", max_tokens=50))
    await generation.closed()
    assert len(await tokens_of(generation)) == 50


async def test_events_that_cannot_be_taken_are_a_death_and_leave_nobody_waiting() -> None:
    clock = FaultyClock()
    rig = Rig(clock)
    rig.engine.start()
    await rig.engine.load("m", "/m").result()
    gate = rig.close_gate()
    generation = rig.engine.submit("m", sequence("a", max_tokens=40))
    await rig.at_gate()
    clock.broken = True
    gate.set()
    with pytest.raises(EngineDied):
        await tokens_of(generation)
    assert [type(death) for death in rig.deaths] == [OSError]
    with pytest.raises(EngineDied):
        rig.engine.load("n", "/n")
    assert await rig.engine.stop(10)


@pytest.mark.parametrize("by", ["abort", "death"])
async def test_requests_that_end_together_have_an_error_each(by: str) -> None:
    """One error object that is raised in several tasks would collect all their tracebacks."""
    rig = Rig()
    rig.engine.start()
    await rig.engine.load("m", "/m").result()
    gate = rig.close_gate()
    generations = [rig.engine.submit("m", sequence(name, max_tokens=9)) for name in "ab"]
    if by == "abort":
        assert rig.engine.abort(None, MemoryPressureAborted("no memory")) == 2
    else:
        rig.backend.plan("/m").step_error = EngineDied("the device is lost")
    gate.set()
    ended = await asyncio.gather(*map(tokens_of, generations), return_exceptions=True)
    assert len({id(error) for error in ended if isinstance(error, OmlxdError)}) == 2
    await rig.engine.stop(10)
