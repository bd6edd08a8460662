"""``omlxd guard``: its requests, and the text of the answers."""

import argparse
from typing import Any

import pytest

from omlxd.api.guard_view import entry_body, guard_body
from omlxd.cli.guard import RESETTABLE, add_arguments, changes, render, render_event
from omlxd.enforcer.settings import FIELDS
from omlxd.policy.readings import ModelView, OsPressure
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.units import GiB
from tests.support.fake_guard import FakeGuard


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser.add_subparsers())
    return parser.parse_args(["guard", *words])


@pytest.mark.parametrize(
    ("words", "body"),
    [
        ((), {}),
        (("--tier", "safe"), {"tier": "safe"}),
        (
            ("--tier", "custom", "--ceiling", "24GB"),
            {"tier": "custom", "custom_ceiling_gb": 24.0},
        ),
        (("--ceiling", "512MiB"), {"custom_ceiling_gb": 0.5}),
        (
            ("--soft", "0.8", "--hard", "0.9"),
            {"soft_threshold": 0.8, "hard_threshold": 0.9},
        ),
        (("--disable",), {"enabled": False}),
        (("--enable", "--monitor"), {"enabled": True, "enforce": False}),
        (("--enforce",), {"enforce": True}),
        (("--reset", "tier", "--reset", "soft"), {"tier": None, "soft_threshold": None}),
        (("--reset", "all"), dict.fromkeys(FIELDS)),
        (("--reset", "all", "--tier", "safe"), {**dict.fromkeys(FIELDS), "tier": "safe"}),
    ],
)
def test_set_asks_for_what_was_named_and_no_more(
    words: tuple[str, ...], body: dict[str, Any]
) -> None:
    assert changes(parse("set", *words)) == body


def test_every_key_of_the_api_can_be_reset() -> None:
    assert set(RESETTABLE.values()) == set(FIELDS)


@pytest.mark.parametrize(
    "words",
    [
        ("set", "--ceiling", "lots"),
        ("set", "--tier", "custom", "--ceiling", "24"),
        ("set", "--tier", "bold"),
        ("set", "--enable", "--disable"),
        ("set", "--reset", "everything"),
        ("erase",),
    ],
)
def test_a_wrong_word_is_refused_before_anything_is_asked(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(*words)
    assert stopped.value.code == 2
    assert words[-1] in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--json",), ("show", "--json"), ("--json", "show")])
def test_options_are_taken_before_and_after_the_verb(words: tuple[str, ...]) -> None:
    assert parse(*words).json is True
    assert parse("--url", "http://a", "events").url == "http://a"
    assert parse("show").url is None


async def shown(guard: FakeGuard) -> str:
    async with guard.running():
        return "\n".join(render(guard_body(guard.enforcer)))


async def test_it_shows_usage_policy_origins_and_what_each_tier_would_allow() -> None:
    guard = FakeGuard(stored={"tier": "custom", "custom_ceiling_gb": 10})
    text = await shown(guard)
    assert text.startswith("memory guard  ok\n  [###")
    assert "the ceiling is the least of static 62.0GB, custom 10.0GB" in text
    assert "bound by custom: Raise the custom ceiling." in text
    rows = [line.split() for line in text.splitlines()]
    assert ["tier", "custom", "api"] in rows
    assert ["custom_ceiling_gb", "10", "api"] in rows
    assert ["soft_threshold", "0.9", "default,", "the", "tier's", "own"] in rows
    assert ["aggressive", "39.5GB", "dynamic", "1.5GB"] in rows
    assert "decisions" not in text


async def test_clamps_and_failed_sources_are_not_hidden() -> None:
    """T05."""
    guard = FakeGuard(GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=100 * GiB))
    guard.degraded = ("swap is unknown",)
    text = await shown(guard)
    assert "! 100.0GB is above the RAM less 2GB, 62.0GB." in text
    assert "! swap is unknown" in text


async def test_what_was_set_and_is_out_of_force_is_said() -> None:
    guard = FakeGuard(GuardPolicy(hard_threshold=0.9), stored={"soft_threshold": 0.92})
    text = await shown(guard)
    assert "! soft_threshold 0.92 was set, and is out of force: it contradicts the others" in text


async def test_off_monitor_and_not_started_are_said_in_the_first_line() -> None:
    off = await shown(FakeGuard(GuardPolicy(enabled=False)))
    assert off.startswith("memory guard  off: there is no ceiling\n  1.0GB in use")
    monitor = await shown(FakeGuard(GuardPolicy(enforce=False)))
    assert "(monitor: shows what it would do)" in monitor.splitlines()[0]
    idle = render(guard_body(FakeGuard().enforcer))
    assert idle[0] == "memory guard  not running"


async def test_a_pause_that_the_level_does_not_tell_is_told() -> None:
    guard = FakeGuard()
    guard.os_pressure = OsPressure.CRITICAL
    text = await shown(guard)
    assert text.startswith("memory guard  ok, new requests wait\n  The system as a whole is")
    watching = FakeGuard(GuardPolicy(enforce=False))
    watching.os_pressure = OsPressure.CRITICAL
    assert "ok, new requests would wait  (monitor" in await shown(watching)


async def events_of(policy: GuardPolicy) -> list[dict[str, Any]]:
    guard = FakeGuard(policy)
    guard.models = tuple(
        ModelView(name, 2 * GiB, 0, False, 0, False, at) for name, at in (("a", 1), ("b", 2))
    )
    guard.footprint = int(9.2 * GiB)
    async with guard.running():
        return [entry_body(entry) for entry in guard.enforcer.record.entries]


async def test_a_decision_reads_with_its_actions_and_what_they_freed() -> None:
    policy = GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=10 * GiB)
    first = render_event((await events_of(policy))[0])
    assert "soft  9.2GB of 10.0GB, admission paused" in first[0]
    assert first[1].strip() == "unload a: freed 2.0GB"


async def test_in_monitor_mode_a_decision_says_what_it_would_do() -> None:
    policy = GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=10 * GiB, enforce=False)
    assert any(
        line.strip() == "would: unload a"
        for event in await events_of(policy)
        for line in render_event(event)
    )


def test_refused_and_pending_actions_are_told_apart() -> None:
    event: dict[str, Any] = {
        "time": 0.0,
        "last_time": 62.0,
        "times": 2,
        "level": "hard",
        "emergency": True,
        "admission_paused": False,
        "usage_bytes": None,
        "ceiling_bytes": None,
        "reason": "Why.",
        "applied": True,
        "reclaimed_bytes": 3 * GiB,
        "actions": [
            {"action": "abort_loads", "model_ids": ["a", "b"], "accepted": False},
            {"action": "unload", "model_id": "c", "accepted": True, "in_flight": True},
        ],
    }
    head, pool, refused, pending = render_event(event)
    assert pool.strip() == "the pool gave back 3.0GB"
    assert "hard EMERGENCY  - of -  Why. (x2 until " in head
    assert head.endswith(":02)")
    assert refused.strip() == "abort loads a, b: refused"
    assert pending.strip() == "unload c: under way"
