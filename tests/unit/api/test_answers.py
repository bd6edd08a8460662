"""Every answer has a request id and OpenAI's error shape, and every body has a limit."""

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from omlxd.api.options import ApiOptions
from omlxd.api.services import ServerPhase
from tests.support.asgi import Call, get, post
from tests.support.fake_pool import Fail, Say, World

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "private words"}]}


@pytest.fixture
def world() -> World:
    return World(options=ApiOptions(max_body=1000))


async def test_every_answer_has_a_request_id(world: World) -> None:
    calls = [
        await get(world.app, "/health").end(),
        await get(world.app, "/nowhere").end(),
        await post(world.app, CHAT, HELLO).end(),
        await post(world.app, CHAT, {**HELLO, "stream": True}).end(),
        await get(world.app, "/health", host="evil.example").end(),
    ]
    ids = [call.headers["x-request-id"] for call in calls]
    assert len(set(ids)) == len(ids)


async def test_a_sane_id_of_the_client_is_kept_and_others_are_not(world: World) -> None:
    sane = await get(world.app, "/health", headers=[("x-request-id", "run-7.A_b")]).end()
    assert sane.headers["x-request-id"] == "run-7.A_b"
    for odd in ("", "a b", "x" * 65, "a\nb", "-a", "é"):
        call = await get(world.app, "/health", headers=[("x-request-id", odd)]).end()
        assert call.headers["x-request-id"].startswith("req-")


async def test_equal_ids_of_clients_do_not_collide_in_the_engine(world: World) -> None:
    for _ in range(2):
        await post(world.app, CHAT, HELLO, headers=[("x-request-id", "same")]).end()
    assert len({g.spec.id for g in world.pool.generations}) == 2


async def test_an_unknown_path_is_an_error_in_shape(world: World) -> None:
    call = await get(world.app, "/v2/models").end()
    assert call.status == 404
    assert set(call.error) >= {"message", "type", "param", "code"}
    assert call.error["code"] == "not_found"


@pytest.mark.parametrize("path", ["/v1/v1/chat/completions", "/v1/v1/models"])
async def test_a_doubled_v1_is_explained(world: World, path: str) -> None:
    call = await post(world.app, path, HELLO).end()
    assert call.status == 404
    assert "/v1 twice" in call.error["message"]


@pytest.mark.parametrize("path", ["/chat/completions", "/models", "/models/org/tiny"])
async def test_a_missing_v1_is_explained(world: World, path: str) -> None:
    for method in ("GET", "POST"):
        call = await Call(world.app, method, path).end()
        assert call.status == 404
        assert f"Perhaps /v1{path} is meant" in call.error["message"]


async def test_an_empty_name_of_a_model_is_none(world: World) -> None:
    assert (await post(world.app, CHAT, {**HELLO, "model": ""}).end()).status == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST, OPTIONS"),
        ("DELETE", "/health", "GET, HEAD, OPTIONS"),
        ("DELETE", "/v1/models/tiny", "GET, HEAD, PATCH, OPTIONS"),
        ("DELETE", "/v1/models/org/tiny", "GET, HEAD, PATCH, OPTIONS"),
        ("PUT", "/openapi.json", "GET, HEAD, OPTIONS"),
        ("TRACE", "/health", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_wrong_method_says_which_are_right(
    still: World, method: str, path: str, allowed: str
) -> None:
    call = await Call(still.app, method, path).end()
    assert (call.status, call.error["code"]) == (405, "method_not_allowed")
    assert call.headers["allow"] == allowed
    assert f"answers {allowed} only" in call.error["message"]
    asked = await Call(still.app, "OPTIONS", path, content_type=None).end()
    assert (asked.status, asked.headers["allow"]) == (204, allowed)


async def test_head_answers_wherever_get_does() -> None:
    world = World()
    app: Any = world.app
    for path, methods in app.openapi()["paths"].items():
        if "get" in methods:
            call = await Call(world.app, "HEAD", path.replace("{name}", "org/tiny")).end()
            assert call.status == 200, path


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"[]",
        b"null",
        b'"text"',
        b'{"messages": \xff}',
        b"[" * 400_000,
        b'{"a":' * 100_000,
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
        b"\xff\xfe{\x00}\x00",
    ],
)
async def test_a_body_that_is_no_json_object_is_a_400(still: World, body: bytes) -> None:
    call = await Call(still.app, "POST", CHAT, body=body).end()
    assert call.status == 400
    assert call.error["type"] == "invalid_request_error"
    assert call.error["message"]


async def test_malformed_json_says_where(world: World) -> None:
    call = await Call(world.app, "POST", CHAT, body=b'{"messages": [}').end()
    assert "character 14" in call.error["message"]


async def test_a_body_above_the_limit_is_refused_announced_or_not(world: World) -> None:
    announced = Call(world.app, "POST", CHAT, body=b"x", headers=[("content-length", "1001")])
    pieces = Call(world.app, "POST", CHAT, body=[b"x" * 600, b"x" * 600, b"x" * 600])
    for call in (announced, pieces):
        await call.end()
        assert (call.status, call.error["code"]) == (413, "body_too_large")
        assert call.error["limit_bytes"] == 1000


async def test_a_body_in_pieces_within_the_limit_is_read(world: World) -> None:
    data = json.dumps(HELLO).encode()
    call = await Call(world.app, "POST", CHAT, body=[data[:5], b"", data[5:]]).end()
    assert call.status == 200


async def test_a_client_that_leaves_while_sending_gets_nothing(world: World) -> None:
    call = Call(world.app, "POST", CHAT, body=[b"{", b""])
    call._incoming.get_nowait()
    call._incoming.get_nowait()
    call._incoming.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
    call.leave()
    await call.end()
    assert call.sent == []


async def test_starting_and_draining_refuse_work_and_say_when_to_return(world: World) -> None:
    for phase, code in (
        (ServerPhase.STARTING, "starting"),
        (ServerPhase.DRAINING, "shutting_down"),
    ):
        world.phase = phase
        for call in (
            post(world.app, CHAT, HELLO),
            post(world.app, CHAT, {**HELLO, "stream": True}),
            post(world.app, "/v1/completions", {"prompt": "a"}),
            post(world.app, "/v1/models/org/tiny/load", {}),
            get(world.app, "/ready"),
        ):
            await call.end()
            assert (call.status, call.error["code"]) == (503, code)
            assert int(call.headers["retry-after"]) >= 1


async def test_neither_prompts_nor_answers_nor_keys_are_logged(world: World) -> None:
    world.pool.scripts.extend([[Say("secret answer"), Fail(ValueError("fault"))]] * 2)
    key = [("authorization", "Bearer sk-secret")]
    with capture_logs() as logs:
        await post(world.app, CHAT, HELLO, headers=key).end()
        await post(world.app, CHAT, {**HELLO, "stream": True}, headers=key).end()
        await post(world.app, CHAT, {**HELLO, "temperature": 9}, headers=key).end()
    events = [entry["event"] for entry in logs]
    assert events.count("http_request") == 3
    assert "request_failed" in events
    assert "stream_failed" in events
    # The traceback is rendered by the log's own processors, from the exception itself.
    shown = json.dumps([{k: v for k, v in entry.items() if k != "exc_info"} for entry in logs])
    for word in ("private", "secret", "sk-"):
        assert word not in shown
