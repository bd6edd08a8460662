"""What configs say: context length, kind, quantisation."""

from typing import Any

import pytest

from omlxd.library.catalog import ModelKind
from omlxd.library.traits import context_length, kind_of, quantization_of


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 32768}, 32768),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 8192}}, 8192),
        (
            {
                "max_position_embeddings": 77,
                "text_config": {"max_position_embeddings": 8192},
            },
            8192,
        ),
        ({"max_position_embeddings": 4096, "text_config": {"hidden_size": 1}}, 4096),
        ({"max_position_embeddings": 32768, "sliding_window": 4096}, 32768),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32768,
                },
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 32.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            131072,
        ),
        ({"max_position_embeddings": 10**30}, None),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": "4096"}, None),
        ({"max_position_embeddings": -1, "n_ctx": 512}, 512),
        ({}, None),
    ],
)
def test_the_context_is_what_the_model_was_made_for(
    config: dict[str, Any], expected: int | None
) -> None:
    """T57"""
    assert context_length(config) == expected


@pytest.mark.parametrize(
    ("config", "names", "expected"),
    [
        ({"model_type": "llama"}, [], ModelKind.LANGUAGE),
        ({"model_type": "gemma3", "vision_config": {}}, [], ModelKind.VISION_LANGUAGE),
        ({"model_type": "bert"}, [], ModelKind.EMBEDDING),
        ({"model_type": "qwen3"}, ["modules.json"], ModelKind.EMBEDDING),
        (
            {"model_type": "bert", "architectures": ["BertForSequenceClassification"]},
            [],
            ModelKind.RERANKER,
        ),
        ({"model_type": "whisper"}, [], ModelKind.OTHER),
        ({"model_type": "llama", "architectures": "nonsense"}, [], ModelKind.LANGUAGE),
    ],
)
def test_the_kind_is_read_from_the_config(
    config: dict[str, Any], names: list[str], expected: ModelKind
) -> None:
    assert kind_of(config, names) is expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"quantization": {"bits": 4, "group_size": 64}}, "4-bit"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({"text_config": {"quantization_config": {"bits": 8}}}, "8-bit"),
        ({"quantization": {}}, "quantized"),
    ],
)
def test_the_quantisation_is_named(config: dict[str, Any], expected: str | None) -> None:
    assert quantization_of(config) == expected
