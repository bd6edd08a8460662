"""The memory guard over HTTP: its state, and the changes that it accepts or refuses."""

import errno
import functools
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, get_args

import pytest
from starlette.types import ASGIApp

from omlxd.api.app import create_app
from omlxd.api.guard_view import ACTION_NAMES, flat_status, preview_body, status_keys
from omlxd.enforcer.settings import From
from omlxd.policy.actions import Action
from omlxd.policy.decision import GuardState
from omlxd.policy.eviction import Eviction
from omlxd.policy.readings import ModelView, OsPressure
from omlxd.policy.relief import decide
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.units import GiB
from tests.support.asgi import Call, get
from tests.support.fake_guard import FakeGuard
from tests.support.fake_pool import World
from tests.unit.policy.scene import CEILING, HARD, POLICY, SOFT, snapshot
from tests.unit.policy.test_ceiling import MAC

PATH = "/v1/memory-guard"


KEYS = """enabled, memory_guard_tier, memory_guard_custom_ceiling_bytes,
ceiling_bytes, static_ceiling_bytes, dynamic_ceiling_bytes, metal_cap_bytes, metal_cap_raw_bytes,
reserve_bytes, other_app_reclaim_ratio, hot_cache_reserved_bytes, scheduler_ceiling_bytes,
scheduler_abort_limit_bytes, soft_threshold, hard_threshold, soft_bytes, hard_bytes, current_bytes,
pressure_level, utilization, poll_interval_seconds"""

TWINS = """ceiling, static_ceiling, dynamic_ceiling, reserve, hot_cache_reserved,
scheduler_ceiling, scheduler_abort_limit, soft, hard, current"""


def words(text: str) -> set[str]:
    return {word.strip() for word in text.replace("\n", " ").split(",")}


FLAT_KEYS = words(KEYS) | {f"{name}_formatted" for name in words(TWINS)}


@functools.lru_cache(maxsize=1)  # making one takes long
def app_of(guard: FakeGuard) -> ASGIApp:
    services = replace(
        World().services(),
        guard=guard.enforcer,
        guard_status=lambda: status_keys(guard.enforcer),
    )
    return create_app(services)


@pytest.fixture
async def guard() -> AsyncIterator[FakeGuard]:
    async with FakeGuard().running() as running:
        yield running


async def put(guard: FakeGuard, body: Any) -> Call:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await Call(app_of(guard), "PUT", PATH, body=raw).end()


async def show(guard: FakeGuard) -> Any:
    call = await get(app_of(guard), PATH).end()
    assert call.status == 200
    return call.json


async def test_the_answer_names_what_was_set_and_is_out_of_force() -> None:
    guard = FakeGuard(GuardPolicy(hard_threshold=0.95), stored={"tier": "aggressive"})
    async with guard.running():
        assert (await show(guard))["dormant"] == {"tier": "aggressive"}


async def test_the_answer_names_value_and_origin_of_every_key(guard: FakeGuard) -> None:
    body = await show(guard)
    assert body["policy"]["tier"] == {"value": "balanced", "set": "balanced", "origin": "default"}
    assert body["policy"]["soft_threshold"] == {"value": 0.9, "set": None, "origin": "default"}
    assert body["running"]
    assert not body["monitor"]
    assert body["dormant"] == {}
    assert body["level"] == "ok"
    assert body["usage_bytes"] == GiB
    assert body["ceiling"]["binding"] == "dynamic"
    assert body["ceiling"]["terms"]["metal_cap"] is None
    assert set(body["preview"]) == {"safe", "balanced", "aggressive", "custom"}
    assert body["preview"]["custom"]["dynamic_bytes"] is None
    assert body["tick"]["milliseconds"] > 0
    assert body["poll_interval_seconds"] == 30.0


async def test_before_the_first_tick_everything_unknown_is_null() -> None:
    guard = FakeGuard()
    body = await show(guard)
    assert not body["running"]
    assert body["level"] is None
    assert body["usage_bytes"] is None
    assert body["ceiling"]["bytes"] is None
    assert body["preview"] is None
    assert body["decisions"] == []
    assert body["readings"]["footprint"] is None
    status = (await get(app_of(guard), "/status").end()).json
    assert status["enabled"] is False
    assert status["ceiling_bytes"] == 0
    assert status["ceiling"]["bytes"] is None


async def test_status_has_exactly_the_reference_keys_at_top_level(guard: FakeGuard) -> None:
    """[R] the keys of the reference's ``get_status()`` at top level, same names and units."""
    status = (await get(app_of(guard), "/status").end()).json
    objects = {"ceiling", "readings", "cache", "models", "requests", "server"}
    assert set(status) == FLAT_KEYS | objects | {"parameters"}
    for name in FLAT_KEYS:
        assert isinstance(status[name], bool | int | float | str), name
    assert status["enabled"] is True
    assert status["pressure_level"] == "ok"
    assert status["current_formatted"] == "1.0GB"


async def test_readings_have_source_and_age_and_null_for_unknown() -> None:
    guard = FakeGuard()
    guard.degraded = ("host_statistics64: error 5",)
    async with guard.running():
        guard.now += 2.5
        readings = (await show(guard))["readings"]
    assert readings["footprint"] == {"value": GiB, "source": None, "age_seconds": 2.5}
    assert readings["graphics_footprint"] is None
    assert readings["active"]["value"] == 0
    assert readings["degraded"] == ["host_statistics64: error 5"]


async def test_a_change_is_in_force_and_stored_when_it_is_answered(guard: FakeGuard) -> None:
    call = await put(guard, {"tier": "custom", "custom_ceiling_gb": 10})
    assert call.status == 200
    assert call.json["ceiling"]["bytes"] == 10 * GiB
    assert call.json["ceiling"]["binding"] == "custom"
    assert call.json["policy"]["custom_ceiling_gb"]["origin"] == "api"
    assert guard.stored == {"tier": "custom", "custom_ceiling_gb": 10.0}
    assert guard.ticks >= 2


async def test_null_returns_a_key_to_what_is_below_the_api(guard: FakeGuard) -> None:
    await put(guard, {"tier": "safe"})
    body = (await put(guard, {"tier": None})).json
    assert body["policy"]["tier"] == {"value": "balanced", "set": "balanced", "origin": "default"}
    assert guard.stored == {}


async def test_switched_off_alone_there_is_no_ceiling(guard: FakeGuard) -> None:
    body = (await put(guard, {"enabled": False})).json
    assert body["ceiling"]["bytes"] is None
    assert body["level"] == "ok"
    status = (await get(app_of(guard), "/status").end()).json
    assert status["enabled"] is False
    assert status["ceiling_bytes"] == 0


async def test_a_ceiling_that_another_tier_ignores_is_refused(guard: FakeGuard) -> None:
    """T04."""
    call = await put(guard, {"custom_ceiling_gb": 60})
    assert call.status == 400
    assert call.error["param"] == "custom_ceiling_gb"
    assert "'balanced'" in call.error["message"]
    assert guard.stored == {}


async def test_a_clamped_ceiling_is_reported_with_its_cause(guard: FakeGuard) -> None:
    """T05."""
    body = (await put(guard, {"tier": "custom", "custom_ceiling_gb": 100})).json
    (clamp,) = body["clamps"]
    assert (clamp["name"], clamp["cause"]) == ("custom_ceiling_gb", "ram_reserve")
    assert clamp["asked"] == 100 * GiB
    assert clamp["effective"] == body["ceiling"]["bytes"] == 62 * GiB


async def test_the_metal_cap_is_reported_and_values_under_it_are_taken() -> None:
    """T05."""
    guard = FakeGuard()
    guard.device_cap = 48 * GiB
    async with guard.running():
        body = (await put(guard, {"tier": "custom", "custom_ceiling_gb": 60})).json
        assert [clamp["cause"] for clamp in body["clamps"]] == ["metal_cap"]
        assert body["ceiling"]["binding"] == "metal_cap"
        body = (await put(guard, {"custom_ceiling_gb": 40})).json
        assert body["clamps"] == []
        assert body["ceiling"]["bytes"] == 40 * GiB


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"[]", None),
        (b"null", None),
        (b'"tier"', None),
        (b"", None),
        (b"{", None),
        (b"\xff\xfe{}", None),
        (b"[" * 100_000, None),
        (b'{"teir": "safe"}', "teir"),
        (b'{"tier": "bold"}', "tier"),
        (b'{"tier": "safe", "tier": "custom"}', "tier"),
        (b'{"soft_threshold": NaN}', "soft_threshold"),
        (b'{"hard_threshold": Infinity}', "hard_threshold"),
        (b'{"custom_ceiling_gb": -Infinity}', "custom_ceiling_gb"),
        (b'{"custom_ceiling_gb": 1e999}', "custom_ceiling_gb"),
        (b'{"tier": "custom", "custom_ceiling_gb": 1e308}', "custom_ceiling_gb"),
        (b'{"custom_ceiling_gb": 1' + b"0" * 400 + b"}", "custom_ceiling_gb"),
        (b'{"custom_ceiling_gb": 1' + b"0" * 5000 + b"}", None),
        (b'{"custom_ceiling_gb": 0}', "custom_ceiling_gb"),
        (b'{"custom_ceiling_gb": true}', "custom_ceiling_gb"),
        (b'{"soft_threshold": 0.99}', "soft_threshold"),
        (b'{"soft_threshold": 0.9, "hard_threshold": 0.9}', "soft_threshold"),
        (b'{"soft_threshold": 2}', "soft_threshold"),
        (b'{"enabled": 1}', "enabled"),
        # Nothing reads it yet, since the prefill has no guard.
        (b'{"prefill_min_chunk_tokens": 512}', "prefill_min_chunk_tokens"),
    ],
)
async def test_a_wrong_body_is_refused_by_name_and_changes_nothing(
    guard: FakeGuard, body: bytes, param: str | None
) -> None:
    call = await put(guard, body)
    assert call.status == 400, call.text
    assert call.error["param"] == param
    assert call.error["message"]
    assert guard.stored == {}
    assert (await show(guard))["policy"]["tier"]["value"] == "balanced"


async def test_a_key_fixed_by_the_environment_is_a_conflict() -> None:
    guard = FakeGuard(GuardPolicy(tier=Tier.SAFE), origins={"tier": From.ENVIRONMENT})
    async with guard.running():
        call = await put(guard, {"tier": "aggressive"})
        assert (call.status, call.error["code"]) == (409, "setting_locked")
        assert "OMLXD_GUARD_TIER" in call.error["message"]
        assert (await show(guard))["policy"]["tier"]["origin"] == "environment"


async def test_a_store_that_cannot_be_written_is_an_error_and_nothing_changes(
    guard: FakeGuard,
) -> None:
    guard.store_error = OSError(errno.ENOSPC, "No space left on device")
    call = await put(guard, {"tier": "safe"})
    assert (call.status, call.error["code"]) == (500, "state_unwritable")
    assert "No space left" in call.error["message"]
    assert (await show(guard))["policy"]["tier"]["value"] == "balanced"


async def test_web_pages_of_others_may_not_change_it(guard: FakeGuard) -> None:
    app = app_of(guard)
    body = b'{"enabled": false}'
    stranger = [("origin", "http://evil.example")]
    assert (await Call(app, "PUT", PATH, body=body, headers=stranger).end()).status == 403
    assert (await Call(app, "PUT", PATH, body=body, host="evil.example").end()).status == 403
    plain = await Call(app, "PUT", PATH, body=body, content_type="text/plain").end()
    assert plain.status == 415
    assert (await show(guard))["policy"]["enabled"]["value"] is True


async def test_decisions_tell_what_was_done_and_what_it_freed() -> None:
    guard = FakeGuard(GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=10 * GiB))
    guard.models = tuple(
        ModelView(name, 2 * GiB, 0, False, 0, False, at) for name, at in (("a", 1), ("b", 2))
    )
    guard.footprint = int(9.2 * GiB)
    async with guard.running():
        decisions = (await show(guard))["decisions"]
    (first, last) = decisions
    assert first["level"] == "soft"
    assert first["admission_paused"]
    assert first["actions"] == [
        {
            "action": "unload",
            "model_id": "a",
            "bytes": 2 * GiB,
            "accepted": True,
            "freed_bytes": 2 * GiB,
            "in_flight": False,
        }
    ]
    assert [decision["reclaimed_bytes"] for decision in decisions] == [0, 0]
    assert first["binding"] == "custom"
    assert first["reading"]["footprint"] == int(9.2 * GiB)
    assert last["level"] == "ok"


async def test_evictions_for_a_load_are_decisions_too(guard: FakeGuard) -> None:
    """Evictions that make room for a load are entries too."""
    asked = Eviction(for_model="b", model_id="a", bytes=2 * GiB)
    guard.enforcer.evicted(asked)
    entry = (await show(guard))["decisions"][-1]
    assert (entry["rule"], entry["applied"], entry["level"]) == ("room_for_load", True, "ok")
    action = {
        "action": "unload",
        "model_id": "a",
        "bytes": 2 * GiB,
        "for_model": "b",
        "accepted": True,
        "freed_bytes": None,
        "in_flight": True,
    }
    assert entry["actions"] == [action]
    guard.enforcer.evicted(replace(asked, freed=GiB))
    body = await show(guard)
    assert body["decisions"][-1]["number"] == entry["number"]
    assert body["decisions"][-1]["actions"] == [action | {"freed_bytes": GiB, "in_flight": False}]
    assert set(body["decisions"][-1]) == set(body["decisions"][0])
    assert body["rule"] != "room_for_load", "this is the guard's own last decision"


def test_every_action_has_its_name_on_the_wire() -> None:
    assert set(ACTION_NAMES) == set(get_args(Action))
    assert sorted(ACTION_NAMES.values()) == [
        "abort_loads",
        "abort_requests",
        "drop_image_cache",
        "idle_reclaim",
        "mark_pending_unload",
        "reclaim_pool",
        "return_free_pages",
        "shrink_ram_cache",
        "suspend",
        "unload",
        "walk_store_cap",
    ]


@pytest.mark.parametrize(
    ("os_pressure", "footprints", "cause", "words"),
    [
        (None, [int(9.2 * GiB)], "level", "9.2GB of 9.0GB (the soft mark, set by the custom"),
        (None, [int(9.2 * GiB), int(8.9 * GiB)], "resuming", "new requests start below 8.8GB"),
        (OsPressure.CRITICAL, [GiB], "os_pressure", "system as a whole is critically short"),
        (OsPressure.WARNING, [GiB], None, None),
    ],
)
async def test_a_pause_is_shown_with_its_cause(
    os_pressure: OsPressure | None, footprints: list[int], cause: str | None, words: str | None
) -> None:
    guard = FakeGuard(GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=10 * GiB))
    guard.os_pressure = os_pressure
    guard.footprint = footprints[0]
    async with guard.running():
        for guard.footprint in footprints[1:]:
            guard.now += 1.0
            assert await guard.enforcer.look_now(5)
        body = await show(guard)
        status = (await get(app_of(guard), "/status").end()).json
    assert body["ceiling"] == status["ceiling"]
    ceiling = status["ceiling"]
    assert (ceiling["admission_paused"], ceiling["pause_cause"]) == (cause is not None, cause)
    assert (body["admission_paused"], body["pause_cause"]) == (cause is not None, cause)
    assert body["decisions"][-1]["pause_cause"] == cause
    assert ceiling["enforced"] is True
    if words is None:
        assert ceiling["pause_reason"] is None
    else:
        assert words in ceiling["pause_reason"]


async def test_events_replay_then_follow_and_end_with_the_guard() -> None:
    guard = FakeGuard()
    async with guard.running():
        stream = get(app_of(guard), f"{PATH}/events").start()
        await stream.until_text('"number":1')
        await guard.enforcer.change({"tier": "custom", "custom_ceiling_gb": 1})
        await stream.until_text('"level":"hard"')
    await stream.end()
    assert stream.headers["content-type"].startswith("text/event-stream")
    *events, done = stream.events
    assert done == "[DONE]"
    numbers = [event["number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert events[-1]["level"] == "hard"


async def test_a_follower_who_leaves_is_let_go(guard: FakeGuard) -> None:
    stream = get(app_of(guard), f"{PATH}/events").start()
    await stream.until_text('"number":1')
    stream.leave()
    await stream.end()
    assert not guard.enforcer.record._listeners


async def test_the_schema_names_the_keys_that_can_be_set(guard: FakeGuard) -> None:
    schema = (await get(app_of(guard), "/openapi.json").end()).json
    declared = schema["paths"][PATH]["put"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(declared["properties"]) == set((await show(guard))["policy"])
    assert declared["properties"]["tier"]["enum"] == [*(tier.value for tier in Tier), None]


def test_the_status_has_the_keys_that_clients_know() -> None:
    decision = decide(GuardState(), snapshot(SOFT), POLICY)
    status = flat_status(decision.memory, POLICY, interval=1.0, running=True)
    assert set(status) == FLAT_KEYS
    assert status["ceiling_formatted"] == "100.0GB"
    assert (status["ceiling_bytes"], status["soft_bytes"], status["hard_bytes"]) == (
        CEILING,
        SOFT,
        HARD,
    )
    assert (status["current_bytes"], status["utilization"]) == (SOFT, 0.9)
    assert (status["pressure_level"], status["poll_interval_seconds"]) == ("soft", 1.0)
    assert (status["memory_guard_tier"], status["enabled"]) == ("custom", True)


def test_what_is_off_or_unknown_is_a_zero_here() -> None:
    """always numbers or strings as in the reference (0 where it is off or unknown, utilization 0.0
    without a ceiling); enabled is true when the guard is on and its loop runs"""
    off = replace(POLICY, enabled=False, custom_ceiling_bytes=None)
    decision = decide(GuardState(), snapshot(GiB), off)
    status = flat_status(decision.memory, off, interval=30.0, running=True)
    assert not status["enabled"]
    assert (status["ceiling_bytes"], status["utilization"], status["dynamic_ceiling_bytes"]) == (
        0,
        0.0,
        0,
    )
    assert None not in status.values()
    on = decide(GuardState(), snapshot(GiB), POLICY)
    assert not flat_status(on.memory, POLICY, interval=1.0, running=False)["enabled"]


def test_the_ratio_is_the_tiers() -> None:
    policy = GuardPolicy(tier=Tier.AGGRESSIVE)
    decision = decide(GuardState(), snapshot(GiB), policy)
    status = flat_status(decision.memory, policy, interval=1.0, running=True)
    assert status["other_app_reclaim_ratio"] == 0.5


def test_the_preview_shows_what_each_tier_would_allow() -> None:
    """Tier preview: for each tier, what the ceiling would be now: reserve_bytes, free_bytes,
    inactive_bytes (active file cache included), other_apps_bytes, static_bytes, dynamic_bytes,
    metal_cap_bytes, ceiling_bytes, binding"""
    shown = preview_body(MAC)
    assert list(shown) == [tier.value for tier in Tier]
    assert shown["aggressive"] == dict(
        reserve_bytes=3 * GiB // 2,
        free_bytes=10 * GiB,
        inactive_bytes=9 * GiB,
        other_apps_bytes=8 * GiB,
        static_bytes=64 * GiB - 3 * GiB // 2,
        dynamic_bytes=47 * GiB - 3 * GiB // 2,
        metal_cap_bytes=51 * GiB,
        ceiling_bytes=47 * GiB - 3 * GiB // 2,
        binding="dynamic",
    )
    assert shown["safe"]["other_apps_bytes"] == 0


def test_the_custom_tier_shows_static_and_metal_only() -> None:
    """Custom shows static and metal only."""
    custom = preview_body(MAC)["custom"]
    assert (custom["dynamic_bytes"], custom["static_bytes"]) == (None, 62 * GiB)
    assert (custom["ceiling_bytes"], custom["binding"]) == (51 * GiB, "metal_cap")


def test_the_first_of_equal_terms_binds() -> None:
    """binding (static, dynamic, metal_cap or empty; the first wins a tie)"""
    tied = replace(MAC, device_cap=59 * GiB)
    custom = preview_body(tied)["custom"]
    assert custom["metal_cap_bytes"] == custom["static_bytes"]
    assert custom["binding"] == "static"


def test_unknown_numbers_are_shown_as_unknown() -> None:
    blind = replace(MAC, free=None, inactive=None, device_cap=None)
    shown = preview_body(blind)["balanced"]
    assert (shown["free_bytes"], shown["inactive_bytes"]) == (None, None)
    assert (shown["dynamic_bytes"], shown["metal_cap_bytes"]) == (None, None)
    assert shown["binding"] == "static"
