import pytest

from omlxd.policy.remedy import binding_name, remedy, wired_limit_advice, wired_limit_warnings
from omlxd.policy.terms import Binding
from omlxd.policy.tiers import Tier
from omlxd.units import GiB, MiB
from tests.unit.policy.scene import ceilings


def text(tier: Tier, binding: Binding, cap_gib: int = 100) -> str:
    bounds = ceilings(tier=tier, device_cap=cap_gib * GiB)
    return remedy(bounds, binding)


def test_each_binding_term_has_its_remedy() -> None:
    """dynamic -> close apps or a bolder tier; custom -> raise the custom ceiling; metal -> sudo
    sysctl iogpu.wired_limit_mb=N; static -> bolder tier, shorter context, smaller model."""
    assert text(Tier.SAFE, Binding.DYNAMIC) == (
        "Close other apps or choose a bolder tier ('balanced')."
    )
    assert text(Tier.AGGRESSIVE, Binding.DYNAMIC) == "Close other apps."
    assert text(Tier.CUSTOM, Binding.DYNAMIC) == "Raise the custom ceiling."
    assert text(Tier.BALANCED, Binding.STATIC) == (
        "Choose a bolder tier ('aggressive'), a shorter context or a smaller model."
    )
    assert text(Tier.CUSTOM, Binding.STATIC) == "Use a shorter context or a smaller model."
    advice = 190 * 1024
    assert text(Tier.CUSTOM, Binding.METAL_CAP) == (
        f"Raise the GPU's limit: sudo sysctl iogpu.wired_limit_mb={advice}"
    )
    assert remedy(ceilings(enabled=False), None) == ""


def test_a_cap_that_cannot_be_raised_safely_is_not_raised() -> None:
    assert "smaller model" in text(Tier.CUSTOM, Binding.METAL_CAP, cap_gib=190)


@pytest.mark.parametrize(
    ("tier", "binding", "name"),
    [
        (Tier.CUSTOM, Binding.DYNAMIC, "custom"),
        (Tier.SAFE, Binding.DYNAMIC, "dynamic"),
        (Tier.CUSTOM, Binding.STATIC, "static"),
        (Tier.SAFE, Binding.METAL_CAP, "metal_cap"),
        (Tier.SAFE, None, ""),
    ],
)
def test_the_binding_term_is_named_as_a_client_reads_it(
    tier: Tier, binding: Binding | None, name: str
) -> None:
    assert binding_name(ceilings(tier=tier), binding) == name


@pytest.mark.parametrize(
    ("total", "static", "mib"),
    [
        (64 * GiB, 50 * GiB, 51200),
        (64 * GiB, 63 * GiB, 62259),
        (100 * MiB + 1, 10 * MiB - 1, 9),
    ],
)
def test_the_wired_limit_advice_is_floored_and_leaves_the_system_its_share(
    total: int, static: int, mib: int
) -> None:
    """The advice shown is min(static, 95 % of RAM) floored to MiB"""
    assert wired_limit_advice(total, static) == mib


@pytest.mark.parametrize(
    ("cap", "kernel", "words"),
    [
        (150, 0, ["The GPU may use 150.0GB"]),
        (190, 190, []),
        (191, 191, ["less than 5%"]),
        (None, None, []),
        (150, 191, ["The GPU may use", "less than 5%"]),
    ],
)
def test_a_wired_limit_that_is_too_low_or_too_high_is_warned_about(
    cap: int | None, kernel: int | None, words: list[str]
) -> None:
    """a device cap below the advice, and a kernel limit that leaves the OS less than 5 %, are
    warned about"""
    bounds = ceilings(device_cap=None if cap is None else cap * GiB)
    found = wired_limit_warnings(bounds, None if kernel is None else kernel * GiB)
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))
