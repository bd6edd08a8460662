"""The device thread's iterations, run one by one on the test's own thread."""

import itertools
from collections.abc import Sequence
from queue import Empty
from typing import TypeVar

import pytest

from omlxd.engine.messages import (
    BufferCacheReclaimed,
    Cancel,
    CancelLoad,
    Command,
    Event,
    Inbox,
    Load,
    LoadFailed,
    LoadFinished,
    LoadProgress,
    ReclaimBufferCache,
    RequestEnded,
    Sampled,
    SetLimits,
    Stepped,
    Stop,
    Submit,
    TakeSample,
    Unload,
    Unloaded,
)
from omlxd.engine.options import EngineOptions
from omlxd.engine.worker import Worker
from omlxd.errors import (
    EngineDied,
    GenerationFailed,
    InvalidRequest,
    ModelBroken,
    ModelLoadCancelled,
    ModelLoadFailed,
    ModelUnloading,
    ShuttingDown,
)
from omlxd.policy.batching import LONGEST_WINDOW, QUIET
from omlxd.policy.ceiling import Limits
from omlxd.policy.chunking import FIRST_CHUNK, SMALLEST_CHUNK
from tests.support.fake_backend import VOCAB, FakeBackend, FakeClock, sequence

E = TypeVar("E", bound=Event)
LONG = 10**9


class FakeInbox(Inbox):
    """Waiting takes no real time; ``late`` are commands that come during the first waits."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self.late: list[Command] = []
        self.waits = 0

    def get(self, *, block: bool = True, timeout: float | None = None) -> Command:
        if timeout is None:
            return super().get(block=block)
        self.waits += 1
        if self.late:
            self.coming -= 1
            return self.late.pop(0)
        self._clock.advance(timeout)
        raise Empty


class Rig:
    def __init__(self, **options: float) -> None:
        self.clock = FakeClock()
        self.backend = FakeBackend(self.clock)
        self.inbox = FakeInbox(self.clock)
        self.posts: list[list[Event]] = []
        self.worker = Worker(
            self.backend,
            EngineOptions(**options),  # type: ignore[arg-type]
            self.clock,
            self.inbox,
            self._post,
            sample_clock=self.clock,
        )

    def _post(self, events: Sequence[Event]) -> None:
        self.posts.append(list(events))

    def send(self, *commands: Command) -> None:
        for command in commands:
            self.inbox.put(command)

    def iterate(self, count: int = 1) -> list[Event]:
        """Up to ``count`` iterations, while there is something to do; the events they posted."""
        before = len(self.posts)
        while count > 0 and not (self.worker.idle and self.inbox.empty()):
            self.worker.iterate()
            count -= 1
        return [e for post in self.posts[before:] for e in post]

    def loaded(self, *model_ids: str) -> "Rig":
        for n, model_id in enumerate(model_ids):
            self.send(Load(n, model_id, f"/{model_id}"))
        self.iterate(3 * len(model_ids))
        self.backend.trail.clear()
        self.posts.clear()
        return self

    def submit(self, model_id: str, request_id: str, prompt: int = 3, tokens: int = LONG) -> None:
        ids = [n % VOCAB for n in range(prompt)]
        self.send(Submit(model_id, sequence(request_id, ids, tokens)))

    def steps(self) -> list[str]:
        return [path for what, path in self.backend.trail if what == "step"]


def only(kind: type[E], events: Sequence[Event]) -> list[E]:
    return [e for e in events if isinstance(e, kind)]


def said(events: Sequence[Event]) -> list[str]:
    """Ids of the requests that have tokens in ``events``, in order."""
    return [i for e in only(Stepped, events) for i, _ in e.tokens]


def ended(events: Sequence[Event]) -> dict[str, str]:
    """Request id -> class of its error."""
    return {e.request_id: type(e.error).__name__ for e in only(RequestEnded, events)}


def test_every_iteration_steps_each_model_once() -> None:
    rig = Rig().loaded("a", "b", "c")
    for model_id in "abc":
        rig.submit(model_id, model_id)
    rig.submit("a", "more")
    rig.iterate(4)
    assert rig.steps() == ["/a", "/b", "/c"] * 4


def test_requests_that_come_together_are_prefilled_together() -> None:
    rig = Rig().loaded("a")
    rig.submit("a", "p", prompt=50)
    rig.inbox.coming = 2
    rig.inbox.late = [Submit("a", sequence(name, [1] * 50, 1)) for name in ("q", "r")]
    events = rig.iterate(1)
    assert [p.request_id for e in only(Stepped, events) for p in e.prefilled] == ["p", "q", "r"]
    assert rig.clock.now < LONGEST_WINDOW


def test_those_that_never_come_hold_nobody_for_long() -> None:
    rig = Rig().loaded("a")
    rig.inbox.coming = 3
    rig.submit("a", "p")
    rig.iterate(1)
    assert rig.clock.now == pytest.approx(LONGEST_WINDOW)
    assert rig.steps() == ["/a"]


def test_one_that_comes_alone_begins_almost_at_once() -> None:
    rig = Rig().loaded("a")
    rig.submit("a", "p")
    rig.iterate(1)
    assert rig.clock.now == pytest.approx(QUIET)
    assert rig.steps() == ["/a"]


def test_a_device_at_work_waits_for_nobody() -> None:
    rig = Rig().loaded("a", "b")
    rig.submit("a", "p")
    rig.iterate(2)
    rig.inbox.coming, rig.inbox.waits = 5, 0
    rig.submit("a", "q")
    rig.submit("b", "r")
    rig.iterate(3)
    assert rig.inbox.waits == 0


def test_stop_ends_the_wait_for_more() -> None:
    rig = Rig().loaded("a")
    rig.inbox.coming = 2
    rig.inbox.late = [Stop()]
    rig.submit("a", "p")
    assert rig.worker.iterate() is False
    assert rig.steps() == []


def test_a_model_loads_one_piece_between_the_steps_of_others() -> None:
    rig = Rig().loaded("a")
    rig.submit("a", "r")
    rig.send(Load(7, "b", "/b"), Load(8, "c", "/c"))
    events = rig.iterate(6)
    assert rig.backend.trail == [
        step for b in ("/b",) * 3 + ("/c",) * 3 for step in (("step", "/a"), ("piece", b))
    ]
    progress = [(e.load_id, e.loaded_bytes) for e in only(LoadProgress, events)]
    assert progress == [(n, 1000 * k) for n in (7, 8) for k in (1, 2, 3)]
    assert [e.load_id for e in only(LoadFinished, events)] == [7, 8]


def test_a_load_takes_no_more_than_its_share_of_the_time_beside_running_requests() -> None:
    rig = Rig(load_share=0.25).loaded("a")
    rig.backend.plan("/a").decode_seconds = 0.02
    rig.backend.plan("/b").pieces = 10
    rig.backend.plan("/b").piece_seconds = 0.06
    rig.submit("a", "r")
    rig.send(Load(7, "b", "/b"))
    events = rig.iterate(95)
    assert [e.load_id for e in only(LoadFinished, events)] == [7]
    pieces = [n for n, (what, _) in enumerate(rig.backend.trail) if what == "piece"]
    assert min(b - a for a, b in itertools.pairwise(pieces)) >= 9


def test_long_steps_leave_a_load_its_share_too() -> None:
    rig = Rig(load_share=0.25, longest_step=1.0).loaded("a")
    rig.backend.plan("/a").decode_seconds = 0.3
    rig.backend.plan("/b").pieces = 100
    rig.backend.plan("/b").piece_seconds = 0.01
    rig.submit("a", "r")
    rig.send(Load(7, "b", "/b"))
    events = rig.iterate(101)
    assert [e.load_id for e in only(LoadFinished, events)] == [7]
    assert len(rig.steps()) <= 12


def test_a_load_alone_takes_all_the_time_and_owes_nothing_for_it() -> None:
    rig = Rig(load_share=0.25).loaded("a")
    rig.backend.plan("/a").decode_seconds = 0.02
    rig.backend.plan("/b").pieces = 10
    rig.backend.plan("/b").piece_seconds = 5.0
    rig.send(Load(7, "b", "/b"))
    rig.iterate(8)
    rig.submit("a", "r")
    rig.iterate(1)
    assert [what for what, _ in rig.backend.trail] == ["piece"] * 8 + ["step", "piece"]


def test_all_commands_that_arrived_act_before_the_next_step() -> None:
    rig = Rig().loaded("a")
    rig.submit("a", "x")
    rig.submit("a", "y")
    rig.send(Cancel("x"), Cancel("y", GenerationFailed("because")))
    events = rig.iterate()
    assert ended(events) == {"x": "NoneType", "y": "GenerationFailed"}
    assert rig.steps() == []


def test_one_step_posts_its_events_at_once() -> None:
    rig = Rig().loaded("a")
    for n in range(3):
        rig.submit("a", f"r{n}")
    rig.iterate(3)
    assert len(rig.posts) == 3
    assert len(said(rig.posts[-1])) == 3


def test_the_allocator_is_sampled_after_each_step() -> None:
    rig = Rig().loaded("a")
    rig.submit("a", "r")
    events = rig.iterate(2)
    assert len(only(Sampled, events)) == 2
    assert only(Sampled, events)[-1].sample.active == rig.backend.active > 3000


def test_a_cancel_in_each_phase_leaves_nothing_behind() -> None:
    """T42"""
    rig = Rig(max_concurrent=2).loaded("a")
    rig.submit("a", "decoding")
    rig.iterate(2)
    rig.submit("a", "prefilling", prompt=900)
    rig.submit("a", "queued")
    rig.iterate()
    batch = rig.backend.models["/a"].batches[0]
    assert set(batch.sequences) == {"decoding", "prefilling"}
    rig.send(Cancel("queued"), Cancel("prefilling"), Cancel("unknown"))
    events = rig.iterate()
    assert ended(events) == {"queued": "NoneType", "prefilling": "NoneType"}
    assert set(batch.sequences) == {"decoding"}
    rig.send(Cancel("decoding"), Cancel("decoding"))
    events = rig.iterate()
    assert ended(events) == {"decoding": "NoneType"}
    last = only(Stepped, events)[-1]
    assert (last.running, last.waiting, last.cache_bytes) == (0, 0, 0)
    assert (len(batch), batch.cache_bytes) == (0, 0)


def test_requests_that_are_cancelled_together_leave_in_one_plan_before_the_next_step() -> None:
    rig = Rig().loaded("a")
    for request_id in ("x", "y", "z"):
        rig.submit("a", request_id)
    rig.iterate(2)
    held: list[int] = []
    rig.backend.on = lambda what, path: held.append(rig.backend.active)
    before = rig.backend.active
    rig.send(Cancel("x"), Cancel("z"))
    events = rig.iterate()
    assert rig.backend.plan("/a").removals == [("x", "z")]
    assert said(events) == ["y"]
    assert held[0] < before


def test_requests_wait_for_a_place_in_order() -> None:
    rig = Rig(max_concurrent=2).loaded("a")
    for n in range(4):
        rig.submit("a", f"r{n}", tokens=1)
    events = rig.iterate(4)
    assert said(events) == ["r0", "r1", "r2", "r3"]
    assert [(e.running, e.waiting) for e in only(Stepped, events)[-4:]] == [
        (2, 2),
        (0, 2),
        (2, 0),
        (0, 0),
    ]


def test_a_failing_step_fails_only_the_requests_in_it() -> None:
    """T15, T43"""
    rig = Rig(max_concurrent=2).loaded("a", "b")
    for n in range(3):
        rig.submit("a", f"a{n}")
    rig.submit("b", "b0")
    rig.iterate(2)
    rig.backend.plan("/a").step_error = RuntimeError("injected")
    events = rig.iterate()
    assert ended(events) == {"a0": "GenerationFailed", "a1": "GenerationFailed"}
    assert said(events) == ["b0"]
    first, *rest = rig.backend.models["/a"].batches
    assert first.closed
    assert rest == []
    assert set(said(rig.iterate(2))) == {"a2", "b0"}
    assert rig.backend.reclaims == 1


def test_a_request_that_fails_alone_leaves_the_others_running() -> None:
    """T43"""
    rig = Rig().loaded("a")
    rig.backend.plan("/a").failing.add("bad")
    for request_id in ("good", "bad"):
        rig.submit("a", request_id, tokens=3)
    events = rig.iterate(5)
    assert ended(events) == {"bad": "GenerationFailed"}
    assert said(events) == ["good"] * 3


@pytest.mark.parametrize("error", [InvalidRequest("no", param="top_k"), ValueError("odd")])
def test_a_request_that_cannot_start_fails_alone(error: Exception) -> None:
    rig = Rig().loaded("a")
    rig.backend.plan("/a").insert_error = error
    rig.submit("a", "bad")
    rig.submit("a", "good", tokens=1)
    events = rig.iterate(3)
    expected = "InvalidRequest" if isinstance(error, InvalidRequest) else "GenerationFailed"
    assert ended(events) == {"bad": expected}
    assert said(events) == ["good"]


def test_a_lost_device_ends_the_thread_and_every_request() -> None:
    rig = Rig().loaded("a")
    rig.submit("a", "r")
    rig.backend.plan("/a").step_error = EngineDied("lost")
    with pytest.raises(EngineDied):
        rig.worker.run()
    assert ended([e for p in rig.posts for e in p]) == {"r": "EngineDied"}
    assert rig.backend.stopped


@pytest.mark.parametrize("at", [0, 2])
def test_a_failing_load_gives_back_what_it_took(at: int) -> None:
    rig = Rig()
    plan = rig.backend.plan("/a")
    plan.load_error, plan.load_error_at = ModelBroken("model.safetensors is broken"), at
    rig.send(Load(1, "a", "/a"))
    failed = only(LoadFailed, rig.iterate(at + 1))
    assert [e.load_id for e in failed] == [1]
    assert failed[0].error is plan.load_error
    assert failed[0].error.__traceback__ is None
    assert (rig.backend.weights, rig.backend.pool) == (0, 0)
    plan.load_error = None
    rig.send(Load(2, "a", "/a"))
    assert [e.load_id for e in only(LoadFinished, rig.iterate(3))] == [2]


def test_a_load_that_fails_in_an_unforeseen_way_does_not_end_the_thread() -> None:
    rig = Rig()
    rig.backend.plan("/a").begin_error = KeyError("surprise")
    rig.send(Load(1, "a", "/a"), Load(2, "b", "/b"))
    events = rig.iterate(4)
    assert [type(e.error) for e in only(LoadFailed, events)] == [ModelLoadFailed]
    assert [e.load_id for e in only(LoadFinished, events)] == [2]


def test_a_model_that_is_there_is_not_loaded_twice() -> None:
    rig = Rig().loaded("a")
    rig.send(Load(9, "a", "/a"))
    assert [e.load_id for e in only(LoadFailed, rig.iterate())] == [9]
    assert rig.backend.weights == 3000


def test_a_cancelled_load_stops_within_one_piece() -> None:
    rig = Rig()
    rig.backend.plan("/a").pieces = 100
    rig.send(Load(1, "a", "/a"), Load(2, "b", "/b"))
    rig.iterate(5)
    rig.send(CancelLoad(1), CancelLoad(1), CancelLoad(77))
    events = rig.iterate(3)
    assert [type(e.error) for e in only(LoadFailed, events)] == [ModelLoadCancelled]
    assert [e.load_id for e in only(LoadFinished, events)] == [2]
    assert rig.backend.trail.count(("piece", "/a")) == 5
    assert (rig.backend.weights, rig.backend.pool) == (3000, 0)


def test_unload_measures_what_came_free() -> None:
    """T11"""
    rig = Rig().loaded("a", "b")
    rig.submit("a", "r", prompt=10)
    rig.iterate(2)
    held = rig.backend.active - rig.backend.models["/b"].weights_bytes
    rig.send(Unload("a"), Unload("nothing"))
    events = rig.iterate()
    assert [(e.model_id, e.freed_bytes) for e in only(Unloaded, events)] == [
        ("a", held),
        ("nothing", 0),
    ]
    assert ended(events) == {"r": "ModelUnloading"}
    assert (rig.backend.active, rig.backend.pool) == (3000, 0)
    rig.submit("a", "late")
    late = only(RequestEnded, rig.iterate())
    assert isinstance(late[0].error, ModelUnloading)


def test_reclaim_acts_at_the_next_step_boundary_under_load() -> None:
    rig = Rig().loaded("a")
    rig.submit("a", "r")
    rig.iterate()
    rig.backend.pool = 500
    rig.send(ReclaimBufferCache(when_idle=False), ReclaimBufferCache(when_idle=False))
    assert [e.freed_bytes for e in only(BufferCacheReclaimed, rig.iterate())] == [500]
    assert rig.backend.trail[-2:] == [("reclaim", ""), ("step", "/a")]
    assert only(BufferCacheReclaimed, rig.iterate()) == []


def test_an_idle_reclaim_waits_for_idle_and_stays_asked_for() -> None:
    rig = Rig().loaded("a")
    rig.submit("a", "r")
    rig.send(ReclaimBufferCache(when_idle=True))
    rig.iterate(2)
    rig.send(ReclaimBufferCache(when_idle=False))
    assert len(only(BufferCacheReclaimed, rig.iterate())) == 1
    rig.iterate()
    assert rig.backend.reclaims == 1
    rig.send(Cancel("r"))
    assert len(only(BufferCacheReclaimed, rig.iterate())) == 1
    rig.send(TakeSample())
    assert only(BufferCacheReclaimed, rig.iterate()) == []


def test_a_paused_admission_lets_running_requests_go_on_and_an_idle_model_start() -> None:
    rig = Rig().loaded("a", "b")
    rig.submit("a", "running", tokens=4)
    rig.iterate(2)
    rig.send(SetLimits(Limits(generation=1, admission_paused=True)))
    for request_id in ("second", "third"):
        rig.submit("a", request_id, tokens=1)
    rig.submit("b", "first of b", tokens=1)
    events = rig.iterate(3)
    assert said(events).count("running") == 3
    assert "first of b" in said(events)
    assert not {"second", "third"} & set(said(events))
    # Now the model is idle: one at a time.
    assert said(rig.iterate(2)) == ["second"]
    rig.send(SetLimits(Limits(generation=2)))
    assert said(rig.iterate(2)) == ["third"]


def test_limits_reach_models_that_load_later() -> None:
    rig = Rig()
    rig.send(SetLimits(Limits(generation=1, admission_paused=True)))
    rig.iterate()
    rig.loaded("a")
    for n in range(2):
        rig.submit("a", f"r{n}")
    assert only(Stepped, rig.iterate())[-1].running == 1


def test_a_prefill_beside_decoding_keeps_to_the_stall() -> None:
    rig = Rig(decode_stall=0.5, longest_step=2.0).loaded("a")
    plan = rig.backend.plan("/a")
    plan.prefill_seconds, plan.decode_seconds = 1 / 1000, 0.05
    rig.submit("a", "decoding")
    rig.iterate(4)
    rig.submit("a", "long", prompt=5000)
    longest = 0.0
    for _ in range(14):
        before = rig.clock.now
        rig.iterate()
        longest = max(longest, rig.clock.now - before)
    assert 0.4 < longest <= 0.5001


def test_prefills_of_several_models_share_the_stall() -> None:
    rig = Rig(decode_stall=0.5).loaded("a", "b", "c")
    for model_id in "abc":
        rig.backend.plan(f"/{model_id}").prefill_seconds = 1 / 1000
    rig.submit("a", "decoding")
    rig.iterate(2)
    rig.submit("b", "b", prompt=5000)
    rig.submit("c", "c", prompt=5000)
    rounds = []
    for _ in range(8):
        before = rig.clock.now
        rig.iterate()
        rounds.append(rig.clock.now - before)
    assert max(rounds) <= 0.5001
    assert rounds[-1] > 0.4


def test_a_prefill_alone_takes_large_chunks() -> None:
    rig = Rig(longest_step=2.0, prefill_chunk=2048).loaded("a")
    rig.backend.plan("/a").prefill_seconds = 1 / 10_000
    rig.submit("a", "long", prompt=20_000)
    rig.iterate(6)
    chunks = rig.backend.plan("/a").chunks
    assert chunks[0] == FIRST_CHUNK
    assert chunks[-1] == 2048
    assert min(chunks) >= SMALLEST_CHUNK


def test_stop_ends_everything_and_leaves_the_backend_last() -> None:
    rig = Rig().loaded("a")
    rig.submit("a", "running")
    rig.send(Load(5, "b", "/b"))
    rig.iterate()
    model = rig.backend.models["/a"]
    rig.send(Stop())
    rig.worker.run()
    events = [e for p in rig.posts for e in p]
    assert ended(events) == {"running": "ShuttingDown"}
    assert [type(e.error) for e in only(LoadFailed, events)] == [ShuttingDown]
    assert model.closed
    assert rig.backend.loads[-1].abandoned
    assert rig.backend.stopped
    assert rig.backend.weights == 0
