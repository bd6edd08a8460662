"""Two models and room for one: everybody is answered, in order, and nothing is cut."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.integration.pool.conftest import MakeMachine
from tests.support.daemon import payloads
from tests.support.machine import Machine
from tests.support.squeeze import NO_END

pytestmark = pytest.mark.alone

CLIENTS, REQUESTS, MOST_LOADS = 8, 40, 5
SAME_MOMENT = 0.5
"""Seconds: of two requests sent closer together than this, either may be the first to arrive."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Times of one clock: sent, first token, end."""

    model: str
    wanted: int
    status: int
    tokens: int
    reason: str | None
    sent: float
    first: float
    ended: float


def ask(machine: Machine, model: str, tokens: int, **fields: Any) -> Answered:
    body = {
        "model": model,
        "prompt": f"request for {model}",
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **NO_END,
        **fields,
    }
    sent, first = time.monotonic(), None
    url = f"{machine.daemon.url}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=300) as answer:
        if answer.status_code != 200:
            now = time.monotonic()
            return Answered(model, tokens, answer.status_code, 0, None, sent, now, now)
        used, reason = 0, None
        for chunk in payloads(answer.iter_lines()):
            assert "error" not in chunk, chunk
            first = first or time.monotonic()
            used = chunk["usage"]["completion_tokens"] if chunk.get("usage") else used
            for choice in chunk["choices"]:
                reason = choice["finish_reason"] or reason
    assert first is not None
    return Answered(model, tokens, 200, used, reason, sent, first, time.monotonic())


def whole(answer: Answered) -> bool:
    return (answer.status, answer.tokens, answer.reason) == (200, answer.wanted, "length")


@pytest.fixture(scope="module")
def shared(module_machine: MakeMachine) -> Machine:
    """One request at a time, in many steps of prefill; a model in use makes room after 1 s."""
    return module_machine(
        "models.drain_after = 1\n[engine]\nmax_concurrent = 1\nprefill_chunk = 64\n"
    )


@pytest.fixture
def both(shared: Machine) -> Iterator[Machine]:
    """The same, with a loaded and room for nothing else."""
    shared.room_for_one()
    assert whole(ask(shared, "a", 4))
    yield shared
    shared.relax()
    shared.empty()


@pytest.mark.parametrize("at_a_time", [1, 8])
def test_forty_requests_of_eight_clients_for_two_models_are_all_answered_in_order(
    machine: MakeMachine, at_a_time: int
) -> None:
    both = machine(f"engine.max_concurrent = {at_a_time}\n")
    both.room_for_one()
    before = {model: both.loads(model) for model in "ab"}
    chance = random.Random(at_a_time)
    work = [(chance.choice("ab"), chance.randrange(2, 9)) for _ in range(REQUESTS)]

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(lambda wish: ask(both, *wish), work))

    assert [answer for answer in answers if not whole(answer)] == []
    loads = {model: both.loads(model) - before[model] for model in "ab"}
    assert all(1 <= loads[model] <= MOST_LOADS for model in "ab"), loads
    for model in "ab":
        assert_first_come_first_served([a for a in answers if a.model == model])
    assert both.daemon.events("leases_ended") == []
    assert "unload" not in {action for action, _ in both.actions_since(0)}


def assert_first_come_first_served(answers: list[Answered]) -> None:
    """Who was clearly sent before another got its first token no later."""
    for one in answers:
        for other in answers:
            if one.sent + SAME_MOMENT < other.sent:
                assert one.first <= other.first + SAME_MOMENT, (one, other)


def test_t07_a_request_for_the_other_model_waits_loads_and_is_answered(
    both: Machine,
) -> None:
    with ThreadPoolExecutor(3) as clients:
        first = clients.submit(ask, both, "a", 200)
        both.until(lambda: both.phases() == ["decode"], "a does not answer")
        other = clients.submit(ask, both, "b", 20)
        both.until(lambda: both.state("b") == "queued", "b does not wait")
        waiting = both.model("b")
        assert (waiting["position"], waiting["waiting"]) == (1, 1)
        assert waiting["detail"]
        last = clients.submit(ask, both, "a", 20)
        answers = [future.result() for future in (first, other, last)]
    assert [answer for answer in answers if not whole(answer)] == []
    assert answers[0].ended < answers[1].first
    assert both.daemon.events("leases_ended") == []


def test_a_stream_of_requests_for_the_resident_model_starves_nobody(
    both: Machine,
) -> None:
    """After ``drain_after`` the resident model drains, though requests for it keep coming."""
    enough = threading.Event()

    def keep_asking() -> list[Answered]:
        answers = []
        while not enough.is_set():
            answers.append(ask(both, "a", 10))
        return answers

    with ThreadPoolExecutor(4) as clients:
        busy = [clients.submit(keep_asking) for _ in range(3)]
        both.until(lambda: len(both.phases()) == 3, "a is not busy")
        other = clients.submit(ask, both, "b", 4).result()
        enough.set()
        answers = [answer for one in busy for answer in one.result()]
    assert whole(other)
    assert other.first - other.sent < 20
    assert [answer for answer in answers if not whole(answer)] == []


def test_t06_prefilling_and_queued_requests_keep_their_model(both: Machine) -> None:
    loads = both.loads("a")
    with ThreadPoolExecutor(3) as clients:
        prefilling = clients.submit(ask, both, "a", 4, prompt=[7] * 3500)
        both.until(lambda: both.phases() == ["prefill"], "a does not prefill")
        queued = clients.submit(ask, both, "a", 4)
        both.until(lambda: both.phases() == ["prefill", "queued"], "nothing is queued")
        rival = clients.submit(ask, both, "b", 4)
        both.until(lambda: both.state("a") == "draining", "a does not make room")
        assert both.phases() == ["prefill", "queued", "waiting"]
        assert both.model("a")["leases"] == 2
        answers = [future.result() for future in (prefilling, queued, rival)]
    assert [answer for answer in answers if not whole(answer)] == []
    assert max(answers[0].ended, answers[1].ended) < answers[2].first
    assert both.loads("a") == loads


def test_what_can_never_fit_is_refused_at_once_and_says_why(both: Machine) -> None:
    both.relax()
    both.empty()
    hard = both.need("a") - 1
    both.marks(soft=hard - 1, hard=hard)
    began = time.monotonic()
    refused = both.ask("a")
    assert time.monotonic() - began < 10
    assert refused.status_code == 507
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers
    error = refused.json()["error"]
    assert error["code"] == "model_too_large"
    assert error["weights_bytes"] >= both.weights("a")
    assert error["weights_bytes"] + error["headroom_bytes"] == hard + 1
    assert abs(error["limit_bytes"] - hard) <= 1
    assert error["binding"] == "custom"
    assert error["remedy"]
    both.relax()
    assert both.ask("a").status_code == 200
