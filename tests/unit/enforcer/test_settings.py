from collections.abc import Mapping
from typing import Any

import pytest

from omlxd.enforcer.options import GuardOptions
from omlxd.enforcer.settings import FIELDS, From, GuardSettings
from omlxd.errors import InvalidRequest, SettingLocked
from omlxd.policy.tiers import GuardPolicy, Tier
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


def test_a_store_that_contradicts_the_configuration_is_dropped() -> None:
    store = Store()
    store.kept = {"soft_threshold": 0.9}
    guard = settings(store, GuardPolicy(hard_threshold=0.8, soft_threshold=0.5))
    assert guard.in_force.policy.soft == 0.5
    assert guard.dropped


def test_the_configuration_refuses_a_ceiling_that_its_tier_ignores() -> None:
    """T04"""
    with pytest.raises(ValueError, match="ignores a custom ceiling"):
        GuardOptions(custom_ceiling=60 * GiB)
    assert GuardOptions(custom_ceiling=60 * GiB, tier=Tier.CUSTOM).policy().tier is Tier.CUSTOM
