"""The text of ``omlxd status``."""

from dataclasses import asdict
from typing import Any

from omlxd.api.guard_view import status_keys
from omlxd.cli.status import render
from omlxd.policy.readings import OsPressure
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.pool.status import ModelStatus, Problem
from omlxd.units import GiB
from tests.support.fake_guard import FakeGuard

SERVER = {"version": "1.2.3", "status": "ok", "uptime": 61.0}
URL = "http://127.0.0.1:8484"


async def status(guard: FakeGuard, **lists: list[dict[str, Any]]) -> dict[str, Any]:
    async with guard.running():
        keys = status_keys(guard.enforcer)
    return {**keys, "server": SERVER, "models": [], "requests": [], **lists}


def a_model(name: str, state: str, **fields: Any) -> dict[str, Any]:
    return {**asdict(ModelStatus(name, state, **fields)), "kind": "language", "progress": None}


def a_request(**fields: Any) -> dict[str, Any]:
    known = {"id": "r-1", "model_id": "a", "phase": "decode", "age": 3.2}
    return {**known, "prompt_done": 5, "prompt_total": 5, "completion_tokens": 7, **fields}


async def test_the_head_says_who_and_how_long() -> None:
    lines = render(await status(FakeGuard()), URL)
    assert lines[0] == f"omlxd 1.2.3  ok  {URL}  up 1m 01s"
    assert "models  none in memory" in lines
    assert "requests  none" in lines


async def test_memory_shows_usage_marks_tier_and_what_binds() -> None:
    guard = FakeGuard(GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=10 * GiB))
    text = "\n".join(render(await status(guard), URL))
    assert "memory  ok  [###" in text
    assert "1.0GB of 10.0GB (10%)" in text
    assert "soft 9.0GB, hard 9.7GB, tier custom, bound by custom" in text
    assert "Raise the custom ceiling." not in text


async def test_under_pressure_the_remedy_is_shown_and_a_failed_source_always() -> None:
    guard = FakeGuard(GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=10 * GiB))
    guard.footprint = 12 * GiB
    guard.degraded = ("swap is unknown",)
    text = "\n".join(render(await status(guard), URL))
    assert "memory  hard" in text
    assert "Raise the custom ceiling." in text
    assert "! swap is unknown" in text


async def test_a_pause_at_ok_is_said_with_its_cause() -> None:
    guard = FakeGuard(GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=10 * GiB))
    guard.os_pressure = OsPressure.CRITICAL
    text = "\n".join(render(await status(guard), URL))
    assert "memory  ok" in text
    assert "new requests wait: The system as a whole is critically short of memory" in text


async def test_monitor_mode_is_said_beside_the_level() -> None:
    watching = GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=10 * GiB, enforce=False)
    calm = "\n".join(render(await status(FakeGuard(watching)), URL))
    assert "memory  ok (monitor mode: nothing is done about it)  [" in calm
    guard = FakeGuard(watching)
    guard.footprint = 12 * GiB
    text = "\n".join(render(await status(guard), URL))
    assert "memory  hard (monitor mode: nothing is done about it)  [" in text
    assert "new requests would wait: 12.0GB of 10.0GB (the ceiling mark" in text


async def test_without_a_ceiling_it_says_that_the_guard_is_off() -> None:
    lines = render(await status(FakeGuard(GuardPolicy(enabled=False))), URL)
    assert "memory  off  1.0GB in use, no ceiling" in lines


async def test_models_are_shown_by_what_matters_in_their_state() -> None:
    broken = Problem("model_broken", "config.json is not JSON")
    models = [
        a_model("a", "ready", pinned=True, weights_bytes=GiB, cache_bytes=0, leases=1, waiting=2),
        {**a_model("b", "loading", weights_bytes=2 * GiB), "progress": 0.5},
        a_model("c", "ready", weights_bytes=GiB, cache_bytes=0, idle_seconds=75.0),
        a_model("d", "draining", detail="memory pressure"),
        a_model("e", "broken", problem=broken),
        a_model("f", "absent"),
    ]
    text = "\n".join(render(await status(FakeGuard(), models=models), URL))
    assert "ready (pinned)" in text
    assert "1 +2 waiting" in text
    assert "loading 50%" in text
    assert "idle 1m 15s" in text
    assert "memory pressure" in text
    assert "config.json is not JSON" in text
    assert "1 more on disk" in text


async def test_requests_are_shown_with_phase_and_progress() -> None:
    early = a_request(id="r-2", model_id=None, phase="preparing", prompt_total=None)
    requests = [a_request(), early]
    lines = render(await status(FakeGuard(), requests=requests), URL)
    assert "  r-1      a      decode        5/5       7   3s" in lines
    assert any(line.split() == ["r-2", "-", "preparing", "-", "7", "3s"] for line in lines)


async def test_a_daemon_without_a_guard_is_shown_too() -> None:
    bare = {"server": SERVER, "models": [], "requests": []}
    assert len(render(bare, URL)) == 5
