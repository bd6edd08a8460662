import pytest

from omlxd.memory_text import (
    Mark,
    binding_name,
    in_words,
    mark_of,
    remedy,
    shortage,
    wired_limit_advice,
    wired_limit_warnings,
)
from omlxd.policy.ceiling import Binding
from omlxd.policy.pressure import Pause
from omlxd.policy.tiers import Tier
from omlxd.units import GiB, MiB
from tests.unit.policy.scene import CEILING, HARD, SOFT, ceilings

RAISE = "Raise the custom ceiling."
CLOSE = "Close other apps or unload models."


@pytest.mark.parametrize(
    ("mark", "limit", "helps", "words"),
    [
        (Mark.SOFT, SOFT, RAISE, "95.0GB of 90.0GB (the soft mark, set by the custom limit) is"),
        (Mark.HARD, HARD, RAISE, "95.0GB of 97.0GB (the hard mark, set by the custom limit) is"),
        (Mark.CEILING, CEILING, RAISE, "95.0GB of 100.0GB (the ceiling mark, set by the custom"),
        (Mark.RESUME, SOFT - 2 * GiB, RAISE, "95.0GB is in use, and new requests start below 88"),
        (Mark.OS_PRESSURE, None, CLOSE, "The system as a whole is critically short of memory; 95"),
    ],
)
def test_each_mark_is_told_with_its_bytes_and_its_remedy(
    mark: Mark, limit: int | None, helps: str, words: str
) -> None:
    """Each names usage, the estimate, the limit, the mark that tripped, the binding term and its
    remedy"""
    facts = shortage(mark, 95 * GiB, 7 * GiB, ceilings())
    assert facts == {
        "usage_bytes": 95 * GiB,
        "estimate_bytes": 7 * GiB,
        "limit_bytes": limit,
        "mark": mark.value,
        "ceiling_bytes": CEILING,
        "binding": "os_pressure" if mark is Mark.OS_PRESSURE else "custom",
        "remedy": helps,
    }
    told = in_words(facts)
    assert told.startswith(words)
    assert told.endswith(helps)


def test_what_is_unknown_is_said_to_be() -> None:
    off = ceilings(enabled=False)
    told = in_words(shortage(Mark.SOFT, None, None, off))
    assert told == "An unknown amount (the soft mark) is in use."
    assert "below the resume mark" in in_words(shortage(Mark.RESUME, 0, None, off))


def test_every_pause_has_its_mark() -> None:
    assert [mark_of(pause) for pause in Pause] == [Mark.SOFT, Mark.RESUME, Mark.OS_PRESSURE]


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
