"""Requests made from the OpenAPI schema: no failure of ours, and always an answer."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from tests.support.daemon import DaemonProcess

EXAMPLES = 80
SECONDS = 90.0
ANSWER_LIMIT = 30.0
DECLARED = frozenset({503, 507})
"""Of the 5xx, those that are no fault of ours: not now, and too large for this machine."""


def operations(daemon: DaemonProcess) -> list[Any]:
    schema = schemathesis.openapi.from_dict(daemon.get("/openapi.json"))
    found = [result.ok() for result in schema.get_all_operations()]
    assert len(found) > 8
    return found


def assert_sound(answer: httpx.Response, what: str) -> None:
    assert answer.status_code < 500 or answer.status_code in DECLARED, (what, answer.text[:500])
    if answer.status_code >= 400:
        assert answer.json()["error"]["message"], what
    assert answer.headers["x-request-id"]


def bounded(body: Any, model: str) -> Any:
    """The same body for a model that is there, with a short answer, half of the time."""
    if not isinstance(body, dict) or len(str(body)) % 2:
        return body
    short = {"max_tokens": 2, "max_completion_tokens": None}
    return {**body, **short, "model": model}


def test_no_request_that_the_schema_allows_makes_the_daemon_fail(
    daemon: DaemonProcess, tiny: Path
) -> None:
    end = time.monotonic() + SECONDS
    statuses: set[int] = set()
    with httpx.Client(base_url=daemon.url, timeout=ANSWER_LIMIT) as client:
        for operation in operations(daemon):
            if operation.path.endswith("/events"):
                continue  # a stream without an end; its refusals are tested elsewhere

            def attack(case: Any) -> None:
                method = case.method
                if time.monotonic() > end:
                    return
                sent = case.as_transport_kwargs()
                if isinstance(case.body, dict):
                    sent.pop("data", None)
                    sent["json"] = bounded(case.body, tiny.name)
                url = str(case.formatted_path)
                headers = {k: v for k, v in dict(sent.get("headers") or {}).items() if v.isascii()}
                if method.upper() not in ("GET", "HEAD"):
                    headers["content-type"] = "application/json"
                try:
                    request = client.build_request(
                        method,
                        url,
                        params=sent.get("params"),
                        headers=headers,
                        json=sent.get("json"),
                        content=sent.get("data"),
                    )
                except (httpx.InvalidURL, ValueError, TypeError):
                    return
                answer = client.send(request)
                statuses.add(answer.status_code)
                assert_sound(answer, f"{method} {url} {sent.get('json')!r}"[:2000])

            for mode in schemathesis.GenerationMode:
                strategy = operation.as_strategy(generation_mode=mode)
                bounds = settings(
                    max_examples=EXAMPLES // 2,
                    deadline=None,
                    database=None,
                    derandomize=True,
                    phases=(Phase.generate,),
                    suppress_health_check=list(HealthCheck),
                )
                # What takes no arguments cannot be asked wrongly.
                with suppress(Unsatisfiable):
                    bounds(given(case=strategy)(attack))()
    assert {200, 400} <= statuses
    assert daemon.get("/health")["status"] == "ok"
    assert not daemon.events("request_failed"), daemon.tail()


@pytest.mark.parametrize("body", ["[]", "null", "1", '"x"', "", "{", "{}", '{"model": 1}', "nul"])
def test_bodies_that_are_no_request_are_refused(daemon: DaemonProcess, body: str) -> None:
    with daemon.client(20) as client:
        for path in ("/v1/chat/completions", "/v1/completions"):
            answer = client.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["message"]
