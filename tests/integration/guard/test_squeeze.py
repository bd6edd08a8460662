"""A real squeeze: a daemon process, real models, real clients, and a ceiling that comes down.

The marks are put where the measured use of memory crosses them; each test waits for what the
guard does about it by looking at ``/status``.
"""

import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from omlxd.units import MiB
from tests.integration.guard.conftest import MakeSqueezed
from tests.support.squeeze import Squeezed

pytestmark = pytest.mark.alone

FAR = 4096 * MiB
"""Above anything that the tests use."""
LONG_PROMPT = " ".join(["hello"] * 80)
"""Some 320 tokens, so more than 100 MB of cache."""


@pytest.fixture(scope="module")
def shared(squeezed_module: MakeSqueezed) -> Squeezed:
    """A daemon without pinned models, warmed up: all it imports late has been imported."""
    daemon = squeezed_module()
    for model in "ab":
        assert daemon.ask(model).status_code == 200
    daemon.empty()
    return daemon


@pytest.fixture
def one(shared: Squeezed) -> Iterator[Squeezed]:
    """The same, with nothing loaded and no ceiling before and after."""
    yield shared
    shared.relax()
    shared.empty()


def test_soft_with_two_idle_models_evicts_the_older_one(one: Squeezed) -> None:
    """At soft, the least recently used idle model goes, only while more than one is loaded."""
    for model in "ab":
        assert one.ask(model).status_code == 200
    both, before = one.settled_usage(), one.last_decision
    one.marks(soft=both - 40 * MiB, hard=both + 1024 * MiB)
    one.until_state("a", "absent")
    one.until(lambda: one.level() == "ok", "the pressure stays")
    assert one.state("b") == "ready"
    assert one.actions_since(before) == [("unload", "a")]
    assert one.usage() < both - 100 * MiB
    assert one.ask("b").status_code == 200


def test_soft_with_one_model_evicts_nothing_and_pauses_admission(one: Squeezed) -> None:
    """Running ones go on, the first request of an idle model passes, the next one waits; it
    starts by itself when the ceiling is raised."""
    assert one.ask("a").status_code == 200
    alone, before = one.settled_usage(), one.last_decision
    one.marks(soft=alone - 40 * MiB, hard=alone + 1024 * MiB)
    one.until(lambda: bool(one.guard()["admission_paused"]), "admission goes on")
    first = one.stream("a").first()
    second = one.stream("a")
    one.until(lambda: one.phases() == ["decode", "queued"], "the second does not wait")
    so_far = first.count
    one.until(lambda: first.count > so_far + 10, "the running request does not go on")
    assert one.level() == "soft"
    assert second.count == 0
    assert one.state("a") == "ready"
    assert one.actions_since(before) == []
    one.relax()
    second.first()
    assert one.phases() == ["decode", "decode"]
    assert not one.guard()["admission_paused"]
    for stream in (first, second):
        stream.go()


def test_hard_with_a_busy_model_aborts_its_requests_and_keeps_it(one: Squeezed) -> None:
    """Hard, only busy unpinned models: the requests of the least recently used one end, with an
    error that says so, and it stays loaded."""
    assert one.ask("a").status_code == 200
    idle = one.settled_usage()
    streamed = one.stream("a", prompt=LONG_PROMPT).first()
    whole = one.stream("a", prompt=LONG_PROMPT, stream=False)
    one.until(lambda: one.phases() == ["decode", "decode"], "the requests do not run")
    busy, before = one.usage(), one.last_decision
    assert busy - idle > 100 * MiB
    one.marks(soft=busy - 60 * MiB, hard=busy - 30 * MiB)
    for ended in (streamed.ended(), whole.ended()):
        assert ended.error is not None
        assert ended.error["code"] == "memory_pressure_aborted"
    assert streamed.status == 200
    assert streamed.count > 0
    assert whole.status == 503
    assert int(whole.headers["retry-after"]) > 0
    one.until(lambda: one.level() == "ok", "the pressure stays")
    actions = one.actions_since(before)
    assert ("abort_requests", "a") in actions
    assert "unload" not in {action for action, _ in actions}
    assert one.state("a") == "ready"
    assert one.ask("a").status_code == 200


def test_hard_with_an_idle_model_unloads_even_the_last_and_the_memory_is_back(
    one: Squeezed,
) -> None:
    """T11: the process is back near where it was before, measured; and it serves again."""
    baseline = one.settled_usage()
    assert one.ask("a").status_code == 200
    loaded, before = one.settled_usage(), one.last_decision
    assert loaded - baseline > 130 * MiB
    one.marks(soft=loaded - 60 * MiB, hard=loaded - 40 * MiB)
    one.until_state("a", "absent")
    assert ("unload", "a") in one.actions_since(before)
    assert one.settled_usage() - baseline < 40 * MiB
    one.relax()
    assert one.ask("a").status_code == 200


def test_pinned_models_stay_under_any_ceiling(squeezed: MakeSqueezed) -> None:
    """Pinned: never unloaded by pressure. Unpinned ones make room for it."""
    daemon = squeezed(pinned="c")
    daemon.until_state("c", "ready")
    assert daemon.ask("c").status_code == 200
    assert daemon.ask("a").status_code == 200
    both, before = daemon.settled_usage(), daemon.last_decision
    daemon.marks(soft=both // 4, hard=both // 3)
    daemon.until_state("a", "absent")
    daemon.until(
        lambda: ("idle_reclaim", None) in daemon.actions_since(before),
        "with only the pinned model left the pool is not asked for",
    )
    assert daemon.level() == "hard"
    assert daemon.state("c") == "ready"
    assert daemon.ask("c").status_code == 200
    assert ("unload", "c") not in daemon.actions_since(before)
    refused = daemon.ask("b")
    assert refused.status_code == 507
    assert refused.json()["error"]["code"] in ("model_too_large", "insufficient_memory")
    daemon.relax()
    daemon.until(lambda: daemon.level() == "ok", "it does not recover")
    assert daemon.ask("a").status_code == 200


def test_status_answers_while_the_device_is_in_a_step(one: Squeezed) -> None:
    """T19: from memory, not from the device thread."""
    stream = one.stream("a", prompt=" ".join(["hello"] * 120))
    one.until(lambda: one.phases() == ["prefill"], "the prefill does not begin")
    took: list[float] = []
    while one.phases() == ["prefill"] and len(took) < 20:
        began = time.monotonic()
        for path in ("/health", "/status", "/v1/memory-guard"):
            assert httpx.get(f"{one.daemon.url}{path}", timeout=10).status_code == 200
        took.append((time.monotonic() - began) / 3)
        threading.Event().wait(0.1)
    stream.go()
    assert took, "the prefill was over before the first look"
    # The figure to hold is 100 ms on a quiet machine; a step of this prefill takes ten times that.
    assert sorted(took)[len(took) // 2] < 0.5
