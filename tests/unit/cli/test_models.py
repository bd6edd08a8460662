"""Models and fits as lines."""

from typing import Any

from omlxd.cli.models import render_fit, render_models
from omlxd.units import GiB


def a_model(**changes: Any) -> dict[str, Any]:
    return {
        "id": "org/one",
        "state": "absent",
        "weights_bytes": GiB,
        "context_length": 131072,
        "pinned": False,
        "aliases": [],
        "problem": None,
        "progress": None,
        **changes,
    }


def a_fit(**changes: Any) -> dict[str, Any]:
    tier = {"ceiling_bytes": 8 * GiB, "binding": "metal_cap", "evict": [], "remedy": None}
    return {
        "id": "org/one",
        "context": 32768,
        "concurrency": 2,
        "loaded": False,
        "weights_bytes": 4 * GiB,
        "weights_measured": True,
        "kv_bytes": 2 * GiB,
        "prefill_bytes": GiB,
        "total_bytes": 7 * GiB,
        "needed_bytes": 7 * GiB,
        "unknown": None,
        "tier": "balanced",
        "tiers": {
            "safe": {**tier, "verdict": "never", "remedy": "Use a smaller model."},
            "balanced": {**tier, "verdict": "after_evictions", "evict": ["a", "b"]},
            "aggressive": {**tier, "verdict": "now"},
        },
        **changes,
    }


def test_models_are_a_table() -> None:
    lines = render_models([a_model(), a_model(id="two", pinned=True, aliases=["x", "y"])])
    assert lines[0].split() == ["MODEL", "STATE", "SIZE", "CONTEXT", "PINNED", "ALIASES"]
    assert lines[1].split() == ["org/one", "absent", "1.0GB", "131", "072"]
    assert lines[2].split()[-3:] == ["yes", "x,", "y"]


def test_a_broken_model_names_the_file_and_the_reason() -> None:
    problem = {"file": "model.safetensors", "message": "is truncated", "retry_in": None}
    broken = a_model(state="broken", weights_bytes=None, context_length=None, problem=problem)
    assert render_models([broken])[-1] == "  ! org/one: model.safetensors is truncated"


def test_a_failed_load_says_when_it_is_tried_again() -> None:
    problem = {"file": None, "message": "No luck.", "retry_in": 65.0}
    assert "1m 05s" in render_models([a_model(state="failed", problem=problem)])[-1]


def test_no_models_say_how_to_get_one() -> None:
    assert "pull" in render_models([])[0]


def test_a_fit_shows_the_parts_and_every_tier() -> None:
    text = "\n".join(render_fit(a_fit()))
    for part in ("2 requests of 32 768 tokens", "4.0GB  (measured)", "7.0GB", "metal cap"):
        assert part in text
    assert "balanced *" in text
    assert "unload a, b" in text
    assert "Use a smaller model." in text


def test_a_fit_says_when_a_load_takes_more_than_what_was_asked_for() -> None:
    assert "to load it" not in "\n".join(render_fit(a_fit()))
    more = "\n".join(render_fit(a_fit(needed_bytes=8 * GiB)))
    assert "to load it        8.0GB  (room for a first prompt)" in more


def test_what_is_not_known_is_not_a_number() -> None:
    fit = a_fit(kv_bytes=None, prefill_bytes=None, total_bytes=None, unknown="odd shape", tiers={})
    text = "\n".join(render_fit(fit))
    assert "not known: odd shape" in text
    assert "total" not in text
    assert "Nothing is known of this machine's memory yet." in text
