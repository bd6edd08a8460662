"""Routes about the server and its models."""

import asyncio
from dataclasses import fields

import pytest

from omlxd.api.openai.unsupported import IGNORED, REFUSED
from omlxd.api.options import ApiOptions
from omlxd.api.services import ServerPhase
from omlxd.backend.plan import Prefilled
from omlxd.engine.generation import Generation
from omlxd.errors import ModelLoadFailed
from omlxd.library.catalog import ModelKind
from omlxd.model_settings.options import ModelSettings
from omlxd.pool.status import ModelStatus
from tests.support.asgi import Call, get, post
from tests.support.fake_generation import a_sequence
from tests.support.fake_pool import FakePool, World, model


@pytest.fixture
def world() -> World:
    return World()


async def test_health_answers_from_memory_in_every_phase(world: World) -> None:
    """T10, T19."""
    for phase in ServerPhase:
        world.phase = phase
        call = await get(world.app, "/health").end()
        assert (call.status, call.json) == (
            200,
            {
                "status": phase.value,
                "version": "1.2.3",
                "instance_id": "i-1",
                "uptime": 60.0,
            },
        )


async def test_health_takes_a_head(world: World) -> None:
    assert (await Call(world.app, "HEAD", "/health", content_type=None).end()).status == 200


async def test_health_and_status_answer_while_a_request_hangs(world: World) -> None:
    """T19."""
    world.pool.gate = asyncio.Event()
    hanging = post(
        world.app, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}
    ).start()
    await world.pool.waiting.wait()
    world.now += 2
    assert (await get(world.app, "/health").end()).status == 200
    (request,) = (await get(world.app, "/status").end()).json["requests"]
    assert request["phase"] == "waiting"
    assert request["model_id"] == "org/tiny"
    assert request["age"] == 2.0
    world.pool.gate.set()
    await hanging.end()
    assert (await get(world.app, "/status").end()).json["requests"] == []


async def test_ready_tells_what_is_still_preloading(world: World) -> None:
    world.pool.preloading = ("org/tiny",)
    call = await get(world.app, "/ready").end()
    assert (call.status, call.json) == (200, {"status": "ready", "preloading": ["org/tiny"]})


async def test_no_list_of_models_is_given_before_the_folders_were_read(world: World) -> None:
    """A client that starts at login would remember an empty list."""
    world.pool.scanned = False
    for path in ("/v1/models", "/ready"):
        call = await get(world.app, path).end()
        assert (call.status, call.error["code"]) == (503, "starting")
        assert call.headers["retry-after"] == "1"
    world.pool.scanned = True
    assert (await get(world.app, "/v1/models").end()).status == 200


async def test_status_shows_server_models_requests_and_parameters(world: World) -> None:
    generation = Generation("org/tiny", a_sequence("r", range(10)), 98.76544, lambda *_: None)
    world.requests.add(generation)
    generation.prefilled(Prefilled("r", 5, 10))
    world.guard = {"pressure_level": "ok", "models": "never replaces ours"}
    world.pool.troubles = ("models.json cannot be written",)
    loading = ModelStatus(
        "org/tiny", "loading", ModelKind.LANGUAGE, loaded_bytes=25, total_bytes=100
    )
    world.pool.statuses = lambda: (loading,)  # type: ignore[method-assign]
    status = (await get(world.app, "/status").end()).json
    assert status["pressure_level"] == "ok"
    assert status["server"]["instance_id"] == "i-1"
    assert status["server"]["model_roots"][0]["state"] == "ok"
    assert status["server"]["troubles"] == ["models.json cannot be written"]
    assert status["models"][0]["state"] == "loading"
    assert status["models"][0]["progress"] == 0.25
    assert status["requests"] == [
        {
            "id": "r",
            "model_id": "org/tiny",
            "phase": "prefill",
            "age": 1.235,
            "prompt_done": 5,
            "prompt_total": 10,
            "completion_tokens": 0,
        }
    ]
    assert status["parameters"]["ignored"] == sorted(IGNORED)
    assert status["parameters"]["refused"] == sorted(REFUSED)


def test_no_parameter_is_both_ignored_and_refused() -> None:
    assert not IGNORED & REFUSED.keys()


async def test_version(world: World) -> None:
    assert (await get(world.app, "/v1/version").end()).json == {"version": "1.2.3"}


async def test_models_have_what_strict_clients_need(world: World) -> None:
    """T59, T57."""
    world.pool.model_settings = type(world.pool.model_settings)(context_length=500)
    listed = (await get(world.app, "/v1/models").end()).json
    assert listed["object"] == "list"
    (entry,) = listed["data"]
    assert entry["id"] == "org/tiny"
    assert entry["object"] == "model"
    assert entry["created"] == 1_700_000_000
    assert entry["owned_by"] == "org"
    assert entry["context_length"] == 500
    assert entry["max_context_length"] == 1000
    assert entry["state"] == "absent"
    assert "path" not in entry


async def test_a_model_is_found_by_an_id_with_a_slash(world: World) -> None:
    found = await get(world.app, "/v1/models/org/tiny").end()
    assert found.json["id"] == "org/tiny"
    missing = await get(world.app, "/v1/models/org/none").end()
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")


async def test_names_may_contain_the_words_of_routes() -> None:
    world = World(pool=FakePool(model("load"), model("a/unload")))
    assert (await get(world.app, "/v1/models/load").end()).json["id"] == "load"
    assert (await get(world.app, "/v1/models/a/unload").end()).json["id"] == "a/unload"
    assert (await post(world.app, "/v1/models/a/unload/unload", {}).end()).status == 200
    assert world.pool.unloads == ["a/unload"]


async def test_load_answers_once_the_model_is_there(world: World) -> None:
    world.pool.gate = asyncio.Event()
    call = post(world.app, "/v1/models/org/tiny/load", {}).start()
    await world.pool.waiting.wait()
    assert call.sent == []
    world.pool.gate.set()
    await call.end()
    assert call.json == {"id": "org/tiny", "state": "ready", "weights_bytes": 1000}


async def test_a_load_that_fails_says_why(world: World) -> None:
    async def load(model_id: str) -> None:
        raise ModelLoadFailed("model.safetensors is truncated", retry_after=12)

    world.pool.load = load  # type: ignore[method-assign, assignment]
    call = await post(world.app, "/v1/models/org/tiny/load", {}).end()
    assert (call.status, call.headers["retry-after"]) == (500, "12")
    assert "truncated" in call.error["message"]


async def test_a_load_is_given_up_with_its_client(world: World) -> None:
    """T10."""
    world.pool.gate = asyncio.Event()
    call = post(world.app, "/v1/models/org/tiny/load", {}).start()
    await world.pool.waiting.wait()
    call.leave()
    await call.end()
    assert world.pool.released == 1
    assert call.sent == []


async def test_unload_reports_the_freed_bytes(world: World) -> None:
    call = await post(world.app, "/v1/models/org/tiny/unload", {}).end()
    assert call.json == {"id": "org/tiny", "freed_bytes": 1000}
    missing = await post(world.app, "/v1/models/nope/unload", {}).end()
    assert missing.status == 404


async def test_a_bodyless_post_needs_no_more_than_its_content_type(world: World) -> None:
    assert (await Call(world.app, "POST", "/v1/models/org/tiny/load").end()).status == 200


async def test_the_schema_is_made(world: World) -> None:
    schema = (await get(world.app, "/openapi.json").end()).json
    assert "/v1/chat/completions" in schema["paths"]
    changed = schema["paths"]["/v1/models/{name}"]["patch"]["requestBody"]
    keys = changed["content"]["application/json"]["schema"]["properties"]
    assert set(keys) == {"default", *(field.name for field in fields(ModelSettings))}
    assert keys["aliases"]["type"] == ["array", "null"]
    assert keys["template_arguments"]["type"] == ["object", "null"]
    assert (keys["top_k"]["type"], keys["top_k"]["minimum"]) == (["integer", "null"], 1)
    assert (keys["top_p"]["exclusiveMinimum"], keys["top_p"]["maximum"]) == (0, 1)


async def test_the_schema_tells_the_bounds_of_every_number(world: World) -> None:
    schemas = (await get(world.app, "/openapi.json").end()).json["components"]["schemas"]
    for request in (schemas["ChatRequest"], schemas["CompletionRequest"]):
        table = request["properties"]
        numbers = {
            name: kind
            for name in table
            for kind in table[name].get("anyOf", ())
            if kind.get("type") in ("integer", "number")
        }
        assert numbers["max_tokens"] == {"type": "integer", "minimum": 1}
        assert numbers["temperature"] == {"type": "number", "minimum": 0, "maximum": 2}
        for name, kind in numbers.items():
            assert {"minimum", "exclusiveMinimum"} & kind.keys(), name
        (biases, _) = table["logit_bias"]["anyOf"]
        bias = biases["additionalProperties"]
        assert (bias["minimum"], bias["maximum"]) == (-100, 100)


async def test_two_applications_share_nothing() -> None:
    one, other = World(), World(options=ApiOptions(allowed_hosts=("box",)))
    assert (await get(one.app, "/health", host="box").end()).status == 403
    assert (await get(other.app, "/health", host="box").end()).status == 200
