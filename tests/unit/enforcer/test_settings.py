import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from omlxd.config.load import load
from omlxd.enforcer.options import GuardOptions
from omlxd.enforcer.settings import FIELDS, From, GuardSettings, guard_settings
from omlxd.errors import InvalidRequest, SettingLocked
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.store import read_json, write_json
from omlxd.units import GiB


class Store:
    def __init__(self) -> None:
        self.kept: Mapping[str, Any] = {}

    def __call__(self, values: Mapping[str, Any]) -> None:
        self.kept = values


def settings(
    store: Store,
    configured: GuardPolicy | None = None,
    origins: Mapping[str, From] | None = None,
) -> GuardSettings:
    return GuardSettings(configured or GuardPolicy(), origins or {}, store.kept, store)


def test_a_change_is_in_force_and_survives_a_restart() -> None:
    store = Store()
    settings(store).change({"tier": "custom", "custom_ceiling_gb": 12.5, "soft_threshold": 0.8})
    again = settings(store).in_force
    assert again.policy.tier is Tier.CUSTOM
    assert again.policy.custom_ceiling_bytes == int(12.5 * GiB)
    assert again.policy.soft == 0.8
    assert again.origins["tier"] is From.API
    assert again.origins["enabled"] is From.DEFAULT


def test_null_returns_a_key_to_what_is_below_the_api() -> None:
    store = Store()
    guard = settings(store, GuardPolicy(tier=Tier.SAFE), {"tier": From.FILE})
    guard.change({"tier": "aggressive"})
    assert guard.in_force.policy.tier is Tier.AGGRESSIVE
    restored = guard.change({"tier": None})
    assert (restored.policy.tier, restored.origins["tier"]) == (Tier.SAFE, From.FILE)
    assert store.kept == {}


def test_switching_the_tier_away_keeps_the_ceiling_for_later() -> None:
    guard = settings(Store())
    guard.change({"tier": "custom", "custom_ceiling_gb": 10})
    guard.change({"tier": "balanced"})
    assert guard.in_force.policy.custom_ceiling_bytes == 10 * GiB
    guard.change({"tier": "custom"})
    assert guard.in_force.policy.tier is Tier.CUSTOM


def test_a_custom_ceiling_with_another_tier_is_refused_with_a_clear_text() -> None:
    """T04"""
    with pytest.raises(InvalidRequest, match="Set the tier to 'custom'") as caught:
        settings(Store()).change({"custom_ceiling_gb": 60})
    assert caught.value.param == "custom_ceiling_gb"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"nope": 1}, "nope"),
        ({"tier": "bold"}, "tier"),
        ({"enabled": "yes"}, "enabled"),
        ({"tier": "custom", "custom_ceiling_gb": 0}, "custom_ceiling_gb"),
        ({"tier": "custom", "custom_ceiling_gb": -1}, "custom_ceiling_gb"),
        ({"tier": "custom", "custom_ceiling_gb": float("nan")}, "custom_ceiling_gb"),
        ({"tier": "custom", "custom_ceiling_gb": float("inf")}, "custom_ceiling_gb"),
        ({"tier": "custom", "custom_ceiling_gb": True}, "custom_ceiling_gb"),
        ({"soft_threshold": 0.95}, "soft_threshold"),
        ({"soft_threshold": 0.9, "hard_threshold": 0.9}, "soft_threshold"),
        ({"hard_threshold": 1.1}, "hard_threshold"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name_and_changes_nothing(
    body: Mapping[str, Any], param: str
) -> None:
    store = Store()
    guard = settings(store)
    with pytest.raises(InvalidRequest) as caught:
        guard.change({"enforce": False, **body})
    assert caught.value.param == param
    assert guard.in_force.policy == GuardPolicy()
    assert store.kept == {}


def test_thresholds_equal_to_the_defaults_of_another_tier_are_honoured() -> None:
    guard = settings(Store(), GuardPolicy(tier=Tier.AGGRESSIVE))
    guard.change({"soft_threshold": 0.85, "hard_threshold": 0.95})
    assert (guard.in_force.policy.soft, guard.in_force.policy.hard) == (0.85, 0.95)


@pytest.mark.parametrize("origin", [From.FLAG, From.ENVIRONMENT])
def test_what_a_flag_or_the_environment_fixes_is_not_changed_silently(origin: From) -> None:
    guard = settings(Store(), GuardPolicy(tier=Tier.SAFE), {"tier": origin})
    with pytest.raises(SettingLocked, match="fixed by") as caught:
        guard.change({"tier": "balanced"})
    assert caught.value.param == "tier"
    assert guard.in_force.origins["tier"] is origin


def test_a_stored_value_yields_to_a_flag() -> None:
    store = Store()
    settings(store).change({"tier": "aggressive"})
    guard = settings(store, GuardPolicy(tier=Tier.SAFE), {"tier": From.FLAG})
    assert guard.in_force.policy.tier is Tier.SAFE


def test_a_store_that_no_longer_reads_is_dropped_and_told() -> None:
    store = Store()
    store.kept = {"tier": "bold", "enforce": False}
    guard = settings(store)
    assert guard.in_force.policy == GuardPolicy(enforce=False)
    assert len(guard.dropped) == 1


def test_null_in_the_store_is_a_key_that_was_not_set() -> None:
    """``null`` resets a key to what is below the API"""
    store = Store()
    store.kept = dict.fromkeys(FIELDS)
    guard = settings(store, GuardPolicy(tier=Tier.SAFE), {"tier": From.FILE})
    assert guard.in_force.policy == GuardPolicy(tier=Tier.SAFE)
    assert guard.in_force.origins["tier"] is From.FILE
    assert guard.dropped == ()
    guard.change({"enforce": False})
    assert store.kept == {"enforce": False}


AGGRESSIVE = {"enabled": False, "enforce": False, "tier": "aggressive", "soft_threshold": 0.96}
"""Stored while hard was the tier's own, 0.98."""


@pytest.mark.parametrize(
    ("configured", "origins", "left_out"),
    [
        (GuardPolicy(hard_threshold=0.96), {"hard_threshold": From.FILE}, ["soft_threshold"]),
        (GuardPolicy(tier=Tier.SAFE), {"tier": From.ENVIRONMENT}, ["soft_threshold"]),
        (
            GuardPolicy(hard_threshold=0.95),
            {"hard_threshold": From.FLAG},
            ["soft_threshold", "tier"],
        ),
        (GuardPolicy(soft_threshold=0.97), {"soft_threshold": From.FLAG}, []),
    ],
)
def test_only_what_the_configuration_contradicts_is_out_of_force(
    configured: GuardPolicy, origins: Mapping[str, From], left_out: list[str]
) -> None:
    """survives a restart (T04, T67)"""
    store = Store()
    store.kept = AGGRESSIVE
    guard = settings(store, configured, origins)
    policy = guard.in_force.policy
    assert (policy.enabled, policy.enforce) == (False, False)
    own = configured.tier if {"tier"} & {*origins, *left_out} else Tier.AGGRESSIVE
    assert policy.tier is own
    assert [line.split("'")[1] for line in guard.dropped] == left_out
    guard.change({})
    assert store.kept == AGGRESSIVE


def test_a_stored_tier_whose_own_mark_clashes_gives_way() -> None:
    store = Store()
    store.kept = {"tier": "aggressive", "enforce": False}
    guard = settings(store, GuardPolicy(hard_threshold=0.95), {"hard_threshold": From.FILE})
    assert guard.in_force.policy == GuardPolicy(hard_threshold=0.95, enforce=False)
    assert guard.in_force.origins["tier"] is From.DEFAULT
    (line,) = guard.dropped
    assert line.startswith("'tier', set to 'aggressive' over the API, is not in force: ")
    assert "hard_threshold 0.95" in line


def test_what_is_out_of_force_stays_stored_until_it_is_set_anew_or_reset() -> None:
    store = Store()
    store.kept = {"soft_threshold": 0.96, "tier": "bold", "enforce": False}
    file = GuardPolicy(hard_threshold=0.96)
    assert settings(store, file).change({"enforce": None}).policy == file
    assert store.kept == {"soft_threshold": 0.96, "tier": "bold"}
    settings(store, file).change({"tier": "safe"})
    assert store.kept == {"soft_threshold": 0.96, "tier": "safe"}
    settings(store, file).change({"soft_threshold": None})
    assert store.kept == {"tier": "safe"}


@pytest.mark.parametrize("text", ['{"tier": NaN}', '{"\\ud800": 1}', '{"tier": "\\ud800"}'])
def test_what_cannot_be_stored_again_hinders_no_change(text: str, tmp_path: Path) -> None:
    guard = GuardSettings(
        GuardPolicy(), {}, json.loads(text), lambda values: write_json(tmp_path / "f", dict(values))
    )
    assert len(guard.dropped) == 1
    guard.change({"enforce": False})
    assert read_json(tmp_path / "f") == {"enforce": False}


def test_what_was_out_of_force_comes_back_when_a_change_makes_room_for_it() -> None:
    store = Store()
    store.kept = {"soft_threshold": 0.96}
    guard = settings(store, GuardPolicy(hard_threshold=0.96))
    assert guard.in_force.policy.soft == 0.9
    assert guard.in_force.dormant == {"soft_threshold": 0.96}
    with capture_logs() as logs:
        assert guard.change({"hard_threshold": 0.97}).policy.soft == 0.96
    assert [(line["event"], line["key"]) for line in logs] == [
        ("guard_setting_revived", "soft_threshold")
    ]
    assert settings(store, GuardPolicy(hard_threshold=0.96)).in_force == guard.in_force


def test_a_tier_out_of_force_never_comes_back_by_a_change_of_something_else() -> None:
    """survives a restart (T04, T67)"""
    store = Store()
    store.kept = {"tier": "aggressive", "enforce": False}
    file = GuardPolicy(hard_threshold=0.95)
    guard = settings(store, file)
    assert guard.in_force.dormant == {"tier": "aggressive"}
    assert guard.change({"enforce": None}).dormant == {"tier": "aggressive"}
    with capture_logs() as logs:
        guard.change({"soft_threshold": 0.8})
    assert guard.in_force.policy == GuardPolicy(soft_threshold=0.8, hard_threshold=0.95)
    assert guard.in_force.dormant == {}
    assert [(line["event"], line["key"]) for line in logs] == [("guard_setting_forgotten", "tier")]
    assert settings(store, file).in_force == guard.in_force
    assert guard.change({"tier": "aggressive"}).policy.tier is Tier.AGGRESSIVE


def test_what_a_change_contradicts_of_what_is_out_of_force_is_over() -> None:
    """After a restart the stored values are in force again."""
    store = Store()
    store.kept = {"hard_threshold": 0.93}
    file = GuardPolicy(soft_threshold=0.95, hard_threshold=0.97)
    guard = settings(store, file)
    guard.change({"soft_threshold": 0.94})
    assert guard.in_force.policy == GuardPolicy(soft_threshold=0.94, hard_threshold=0.97)
    assert settings(store, file).in_force == guard.in_force


def test_a_change_never_puts_out_of_force_what_is_in_force() -> None:
    store = Store()
    guard = settings(store)
    guard.change({"soft_threshold": 0.8})
    with pytest.raises(InvalidRequest):
        guard.change({"hard_threshold": 0.7})
    assert guard.in_force.policy == GuardPolicy(soft_threshold=0.8)
    assert store.kept == {"soft_threshold": 0.8}


def test_the_configuration_refuses_a_ceiling_that_its_tier_ignores() -> None:
    """T04"""
    with pytest.raises(ValueError, match="ignores a custom ceiling"):
        GuardOptions(custom_ceiling=60 * GiB)
    assert GuardOptions(custom_ceiling=60 * GiB, tier=Tier.CUSTOM).policy().tier is Tier.CUSTOM


def config_of(home: Path, flags: dict[str, Any], environ: dict[str, str]) -> Any:
    return load(flags, environ, home=str(home))


def settings_of(config: Any) -> GuardSettings:
    origins = {name: origin.value for name, origin in config.origins.items()}
    return guard_settings(config.guard.policy(), origins, config.paths.state)


def test_origins_follow_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[guard]\ntier = "custom"\ncustom_ceiling = "8GB"\n')
    config = config_of(tmp_path, {}, {"OMLXD_GUARD_SOFT_THRESHOLD": "0.8"})
    in_force = settings_of(config).in_force
    assert in_force.policy.custom_ceiling_bytes == 8 * GiB
    assert in_force.origins["tier"] is From.FILE
    assert in_force.origins["custom_ceiling_gb"] is From.FILE
    assert in_force.origins["soft_threshold"] is From.ENVIRONMENT
    assert in_force.origins["hard_threshold"] is From.DEFAULT


def test_what_was_set_survives_a_restart(tmp_path: Path) -> None:
    config = config_of(tmp_path, {}, {})
    settings_of(config).change({"tier": "custom", "custom_ceiling_gb": 12.5})
    in_force = settings_of(config).in_force
    assert in_force.policy.custom_ceiling_bytes == int(12.5 * GiB)
    assert in_force.origins["tier"] is From.API
    stored = json.loads((tmp_path / "state" / "guard.json").read_text())
    assert stored == {"tier": "custom", "custom_ceiling_gb": 12.5}


@pytest.mark.parametrize("text", ["{", "", "[]", "\x00"])
def test_a_damaged_file_is_said_and_the_configuration_holds(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state" / "guard.json"
    path.parent.mkdir()
    path.write_text(text)
    with capture_logs() as logs:
        settings = settings_of(config_of(tmp_path, {}, {}))
    assert settings.in_force.policy == GuardPolicy()
    assert [log["event"] for log in logs] == ["guard_settings_lost"]


def test_a_damaged_file_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "state" / "guard.json"
    path.parent.mkdir()
    path.write_text("{")
    settings_of(config_of(tmp_path, {}, {}))
    assert not path.exists()
    assert len(list(path.parent.glob("guard.json.*"))) == 1
