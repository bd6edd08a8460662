"""Reading shapes from configs: which are understood, and the reasons of the others."""

from typing import Any

import pytest

from omlxd.backend.shapes.read import RULES, UnknownShape, model_shape
from omlxd.policy.footprint import ModelShape, Workload, footprint, kept_bytes
from tests.support.tiny_configs import BASE, tiny_config


def understood(config: dict[str, Any], element: int = 2) -> ModelShape:
    found = model_shape(config, element)
    assert isinstance(found, ModelShape), found
    return found


def reason(config: dict[str, Any]) -> str:
    found = model_shape(config, 2)
    assert isinstance(found, UnknownShape), found
    return found.reason


@pytest.mark.parametrize("architecture", sorted(RULES))
def test_every_architecture_of_the_table_reads_its_config(architecture: str) -> None:
    assert kept_bytes(understood(tiny_config(architecture)), 1000) > 0


def test_llama_3_8b_keeps_128_kib_a_token() -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }
    assert footprint(understood(config), Workload(context=1)).kv_token == 128 * 1024


def test_without_kv_heads_every_head_keeps_its_own() -> None:
    config = {k: v for k, v in tiny_config("qwen2").items() if k != "num_key_value_heads"}
    assert footprint(understood(config), Workload(context=1)).kv_token == 4 * 2 * 4 * 16 * 2


def test_only_every_fourth_layer_of_a_hybrid_grows() -> None:
    hybrid = footprint(understood(tiny_config("qwen3_next")), Workload(context=1000))
    assert hybrid.kv_token == 2 * 2 * 24 * 2


def test_a_wrapper_is_read_as_the_model_inside() -> None:
    text = {**BASE, "model_type": "ministral3", "head_dim": 24}
    inside = understood(text)
    assert understood({"model_type": "mistral3", "text_config": text}) == inside
    bare = {k: v for k, v in text.items() if k != "model_type"}
    as_llama = understood({**bare, "model_type": "llama"})
    assert understood({"model_type": "mistral3", "text_config": bare}) == as_llama


def test_an_unknown_architecture_has_no_estimate_and_says_so() -> None:
    assert "'rwkv9'" in reason({**BASE, "model_type": "rwkv9"})
    assert "None" in reason({})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", None),
        ("num_hidden_layers", "32"),
        ("num_hidden_layers", 10**7),
        ("num_attention_heads", 0),
        ("num_key_value_heads", -2),
        ("hidden_size", 1.5),
        ("hidden_size", True),
        ("hidden_size", 10**12),
        ("head_dim", [1]),
        ("vocab_size", {}),
    ],
)
def test_a_value_that_cannot_be_is_named(key: str, value: Any) -> None:
    config = {**tiny_config("qwen3"), key: value}
    assert key in reason(config) or "layers" in reason(config)


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("gpt_oss", "layer_types", "full"),
        ("gpt_oss", "layer_types", ["full_attention"]),
        ("gpt_oss", "sliding_window", None),
        ("kimi_linear", "linear_attn_config", None),
        ("kimi_linear", "linear_attn_config", {"kda_layers": ["1"]}),
        ("nemotron_h", "hybrid_override_pattern", "MXQ"),
        ("nemotron_h", "hybrid_override_pattern", ""),
        ("exaone4", "sliding_window_pattern", 4),
        ("deepseek_v3", "kv_lora_rank", None),
    ],
)
def test_a_hybrid_that_does_not_say_its_layers_is_not_guessed(
    architecture: str, key: str, value: Any
) -> None:
    reason({**tiny_config(architecture), key: value})
