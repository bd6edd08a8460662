"""Routes about the models: settings, fit, rescan."""

import json
from dataclasses import replace
from typing import Any

import pytest

from omlxd.api.services import ServerPhase
from omlxd.library.catalog import BrokenModel
from tests.support.asgi import Call, get
from tests.support.fake_pool import FIT, FakePool, World, model


@pytest.fixture
def world() -> World:
    return World(pool=FakePool(model(), model("plain"), model("odd/fit", context_length=None)))


async def patch(world: World, path: str, body: Any, **options: Any) -> Call:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await Call(world.app, "PATCH", path, body=data, **options).end()


async def post(world: World, path: str, **options: Any) -> Call:
    return await Call(world.app, "POST", path, **options).end()


async def test_settings_are_changed_by_name_and_shown_with_their_origin(world: World) -> None:
    call = await patch(world, "/v1/models/org/tiny", {"temperature": 0.5, "pinned": True})
    assert call.status == 200
    assert world.pool.changes == [("org/tiny", {"temperature": 0.5, "pinned": True})]
    shown = call.json["settings"]
    assert shown["temperature"] == {"value": 0.5, "origin": "api"}
    assert (await get(world.app, "/v1/models/org/tiny").end()).json["settings"] == shown


async def test_null_gives_a_setting_back(world: World) -> None:
    await patch(world, "/v1/models/org/tiny", {"temperature": 0.5})
    call = await patch(world, "/v1/models/org/tiny", {"temperature": None})
    assert call.json["settings"] == {}


async def test_the_settings_of_a_broken_model_can_be_changed(world: World) -> None:
    broken = BrokenModel("bad/one", "config.json", "is missing")
    world.pool.catalog = replace(world.pool.catalog, broken={broken.id: broken})
    call = await patch(world, "/v1/models/bad/one", {"temperature": 0.5})
    assert call.json == {
        "id": "bad/one",
        "object": "model",
        "settings": {"temperature": {"value": 0.5, "origin": "api"}},
    }


async def test_a_model_tells_whether_it_is_the_default(world: World) -> None:
    shown = [(await get(world.app, f"/v1/models/{n}").end()).json for n in ("org/tiny", "plain")]
    assert [model["default"] for model in shown] == [True, False]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperatur": 1}, "temperatur"),
        ({"temperature": "hot"}, "temperature"),
        ({"pinned": 1}, "pinned"),
        ({"idle_timeout": -1}, "idle_timeout"),
        ({"aliases": "a"}, "aliases"),
    ],
)
async def test_a_wrong_setting_is_refused_by_name(
    world: World, body: dict[str, Any], param: str
) -> None:
    call = await patch(world, "/v1/models/plain", body)
    assert call.status == 400
    assert call.json["error"]["param"] == param
    assert world.pool.changes == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"pinned": true, "pinned": false}'])
async def test_settings_are_one_json_object(world: World, body: bytes) -> None:
    assert (await patch(world, "/v1/models/plain", body)).status == 400


async def test_settings_need_the_json_content_type(world: World) -> None:
    call = await patch(world, "/v1/models/plain", {}, content_type="text/plain")
    assert call.status == 415


async def test_an_unknown_model_has_no_settings(world: World) -> None:
    call = await patch(world, "/v1/models/org/none", {"pinned": True})
    assert (call.status, call.json["error"]["code"]) == (404, "model_not_found")


async def test_a_fit_names_every_part(world: World) -> None:
    call = await get(world.app, "/v1/models/org/tiny/fit?context=100&concurrency=3").end()
    assert world.pool.fit_asked == ("org/tiny", 100, 3)
    assert call.json == {
        "id": "org/tiny",
        "context": 100,
        "concurrency": 3,
        "loaded": False,
        "weights_bytes": 1000,
        "weights_measured": False,
        "kv_bytes": 200,
        "prefill_bytes": 30,
        "total_bytes": 1230,
        "needed_bytes": 1230,
        "unknown": None,
        "tier": "balanced",
        "tiers": {
            "balanced": {
                "verdict": "after_evictions",
                "ceiling_bytes": 5000,
                "binding": "static",
                "evict": ["org/other"],
                "remedy": None,
            }
        },
    }


async def test_a_model_that_is_not_understood_has_no_total(world: World) -> None:
    world.pool.fit_answer = replace(FIT, kv_bytes=None, prefill_bytes=None, unknown="odd")
    body = (await get(world.app, "/v1/models/plain/fit?context=10").end()).json
    assert (body["total_bytes"], body["kv_bytes"], body["unknown"]) == (None, None, "odd")
    assert body["weights_bytes"] == 1000


async def test_without_a_context_the_whole_one_is_asked_for(world: World) -> None:
    await get(world.app, "/v1/models/plain/fit").end()
    assert world.pool.fit_asked == ("plain", 1000, 1)


async def test_a_model_without_a_known_context_needs_one_named(world: World) -> None:
    call = await get(world.app, "/v1/models/odd/fit/fit").end()
    assert (call.status, call.json["error"]["param"]) == (400, "context")


async def test_a_model_called_fit_is_still_a_model(world: World) -> None:
    call = await get(world.app, "/v1/models/odd/fit").end()
    assert (call.status, call.json["id"]) == (200, "odd/fit")
    assert world.pool.fit_asked is None


@pytest.mark.parametrize("query", ["context=0", "context=x", "concurrency=0", "context=1e12"])
async def test_a_fit_of_nothing_is_refused(world: World, query: str) -> None:
    call = await get(world.app, f"/v1/models/plain/fit?{query}").end()
    assert (call.status, call.json["error"]["param"]) == (400, query.partition("=")[0])


async def test_a_rescan_tells_what_it_found(world: World) -> None:
    broken = BrokenModel("bad/one", "config.json", "is missing")
    world.pool.catalog = replace(world.pool.catalog, broken={broken.id: broken})
    call = await post(world, "/v1/models/rescan")
    assert call.status == 200
    assert world.pool.rescans == 1
    assert call.json["models"] == ["odd/fit", "org/tiny", "plain"]
    assert call.json["broken"] == [{"id": "bad/one", "file": "config.json", "reason": "is missing"}]
    assert call.json["roots"] == [{"path": "/models", "state": "ok", "detail": None}]


async def test_a_rescan_needs_json_and_a_ready_server(world: World) -> None:
    assert (await post(world, "/v1/models/rescan", content_type=None)).status == 415
    world.phase = ServerPhase.STARTING
    assert (await post(world, "/v1/models/rescan")).status == 503
    assert world.pool.rescans == 0
