from dataclasses import replace

from omlxd.policy.preview import TierPreview, tier_preview
from omlxd.policy.tiers import Tier
from omlxd.units import GiB
from tests.unit.policy.test_ceiling import MAC


def test_the_preview_shows_what_each_tier_would_allow() -> None:
    """Tier preview: for each tier, what the ceiling would be now: reserve_bytes, free_bytes,
    inactive_bytes (active file cache included), other_apps_bytes, static_bytes, dynamic_bytes,
    metal_cap_bytes, ceiling_bytes, binding"""
    shown = tier_preview(MAC, 0.0)
    assert list(shown) == list(Tier)
    assert shown[Tier.AGGRESSIVE] == TierPreview(
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
    assert shown[Tier.SAFE].other_apps_bytes == 0


def test_the_custom_tier_shows_static_and_metal_only() -> None:
    """Custom shows static and metal only."""
    custom = tier_preview(MAC, 0.0)[Tier.CUSTOM]
    assert (custom.dynamic_bytes, custom.static_bytes) == (None, 62 * GiB)
    assert (custom.ceiling_bytes, custom.binding) == (51 * GiB, "metal_cap")


def test_the_first_of_equal_terms_binds() -> None:
    """binding (static, dynamic, metal_cap or empty; the first wins a tie)"""
    tied = replace(MAC, device_cap=59 * GiB)
    custom = tier_preview(tied, 0.0)[Tier.CUSTOM]
    assert custom.metal_cap_bytes == custom.static_bytes
    assert custom.binding == "static"


def test_unknown_numbers_are_shown_as_unknown() -> None:
    blind = replace(MAC, free=None, inactive=None, device_cap=None)
    shown = tier_preview(blind, 0.0)[Tier.BALANCED]
    assert (shown.free_bytes, shown.inactive_bytes) == (None, None)
    assert (shown.dynamic_bytes, shown.metal_cap_bytes) == (None, None)
    assert shown.binding == "static"
