"""Requests made from the OpenAPI schema: no failure of ours, and always an answer."""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from tests.support.daemon import DaemonProcess, link_models

EXAMPLES = 20
"""Of requests as the schema has them, and as many of others, for each operation."""
SECONDS = 240.0
"""It takes a tenth of that on a quiet machine; longer, and something hangs."""
ANSWER_LIMIT = 30.0
DECLARED = frozenset({503, 507})
"""Of the 5xx, those that are no fault of ours: not now, and too large for this machine."""
WITH_BODY = frozenset(
    {
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("PUT", "/v1/memory-guard"),
        ("PATCH", "/v1/models/{name}"),
    }
)
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[DaemonProcess]:
    """A daemon of its own: its guard and its models end up set to anything."""
    home = tmp_path_factory.mktemp("fuzzed")
    link_models(home, tiny)
    with DaemonProcess(home, "--log-level", "debug") as running:
        running.until(lambda: running.answers("/ready"), "not ready")
        yield running
        assert running.stop() == 0
        assert not running.events("request_failed"), running.tail()


@dataclass
class Tally:
    """What was sent to one operation, and what it answered."""

    sent: int = 0
    bodies: int = 0
    statuses: set[int] = field(default_factory=set)


class Attack:
    """Sends what is made up for one operation, half of it about a model that is there."""

    def __init__(self, client: httpx.Client, model: str, end: float) -> None:
        self._client = client
        self._model = model
        self._end = end
        self.tally = Tally()

    def make(self, case: Any) -> None:
        assert time.monotonic() < self._end, f"not done within {SECONDS:.0f} s"
        request = self._request(case)
        if request is None:
            return
        answer = self._client.send(request)
        self.tally.sent += 1
        self.tally.bodies += bool(request.content)
        self.tally.statuses.add(answer.status_code)
        what = f"{request.method} {request.url} {request.content!r}"[:2000]
        assert answer.status_code < 500 or answer.status_code in DECLARED, (what, answer.text)
        if answer.status_code >= 400:
            assert answer.json()["error"]["message"], what
        assert answer.headers["x-request-id"]

    def _request(self, case: Any) -> httpx.Request | None:
        """None for what no client can put on the wire."""
        sent = case.as_transport_kwargs()
        known = self.tally.sent % 2 == 0
        if isinstance(case.body, dict):
            sent.pop("data", None)
            asks = "completions" in case.path
            sent["json"] = self._bounded(case.body, known) if asks else case.body
        url = case.path if known else str(case.formatted_path)
        made_up = dict(sent.get("headers") or {})
        # Its own type comes along in another case, and two of them are no type.
        headers = {k: v for k, v in made_up.items() if v.isascii() and k.lower() not in JSON}
        try:
            return self._client.build_request(
                case.method,
                url.replace("{name}", self._model),
                params=sent.get("params"),
                headers=headers if case.method.upper() in ("GET", "HEAD") else {**headers, **JSON},
                json=sent.get("json"),
                content=sent.get("data"),
            )
        except (httpx.InvalidURL, ValueError, TypeError):
            return None

    def _bounded(self, body: dict[str, Any], known: bool) -> dict[str, Any]:
        """With a short answer, unless the length asked for is no length."""
        lengths = ("max_tokens", "max_completion_tokens")
        short = {key: 2 for key in lengths if isinstance(body.get(key, 0), int | None)}
        return {**body, **short, **({"model": self._model} if known else {})}


def operations(daemon: DaemonProcess) -> list[Any]:
    """All but the stream without an end. What changes settings comes last."""
    schema = schemathesis.openapi.from_dict(daemon.get("/openapi.json"))
    results: Iterable[Any] = schema.get_all_operations()
    found = [result.ok() for result in results]
    found = [operation for operation in found if not operation.path.endswith("/events")]
    return sorted(found, key=lambda operation: operation.method.upper() in ("PUT", "PATCH"))


def run(attack: Attack, operation: Any) -> None:
    bounds = settings(
        max_examples=EXAMPLES,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    for mode in schemathesis.GenerationMode:

        @bounds
        @given(case=operation.as_strategy(generation_mode=mode))
        def every(case: Any) -> None:
            attack.make(case)

        # What takes no arguments cannot be asked wrongly.
        with suppress(Unsatisfiable):
            every()


def test_no_request_that_the_schema_allows_makes_the_daemon_fail(
    fuzzed: DaemonProcess, tiny: Path
) -> None:
    end = time.monotonic() + SECONDS
    tallies: dict[tuple[str, str], Tally] = {}
    with httpx.Client(base_url=fuzzed.url, timeout=ANSWER_LIMIT) as client:
        for operation in operations(fuzzed):
            attack = Attack(client, tiny.name, end)
            tallies[operation.method.upper(), operation.path] = attack.tally
            run(attack, operation)
    assert len(tallies) > 8
    for name, tally in tallies.items():
        assert tally.sent > 0, name
        if name in WITH_BODY:
            assert tally.bodies >= EXAMPLES, (name, tally)
            assert 400 in tally.statuses, (name, tally)
    assert tallies.keys() >= WITH_BODY
    # What is made up differs between versions: which operation likes any of it is left to chance.
    assert any(200 in tallies[name].statuses for name in WITH_BODY), tallies
    assert fuzzed.get("/health")["status"] == "ok"
    assert not fuzzed.events("request_failed"), fuzzed.tail()


@pytest.mark.parametrize("body", ["[]", "null", "1", '"x"', "", "{", "{}", '{"model": 1}', "nul"])
def test_bodies_that_are_no_request_are_refused(daemon: DaemonProcess, body: str) -> None:
    with daemon.client(20) as client:
        for path in ("/v1/chat/completions", "/v1/completions"):
            answer = client.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["message"]
