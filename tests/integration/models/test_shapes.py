"""Estimates from configs against the caches of mlx-lm's own models after a prefill."""

import copy
from typing import Any

import mlx.core as mx
import pytest

from omlxd.backend.mlx.backend import import_mlx_lm
from omlxd.backend.shapes.read import RULES, model_shape
from omlxd.policy.footprint import ModelShape, Workload, attention_bytes, kept_bytes
from tests.support.tiny_configs import tiny_config

TOKENS = 300
HALF = ("llama", "lfm2", "mamba", "mamba2", "falcon_h1", "gemma4", "olmo_hybrid")
"""One of each kind of cache; mixtures of experts have no bfloat16 kernel on the CPU."""


def made(config: dict[str, Any], dtype: mx.Dtype) -> Any:
    import_mlx_lm()
    from mlx_lm.utils import _get_classes

    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(copy.deepcopy(config)))
    model.set_dtype(dtype)
    return model


def kept_by(model: Any, tokens: int) -> int:
    """Bytes of its caches, as a batch has them, once it decodes after ``tokens``."""
    from mlx_lm.models.cache import make_prompt_cache

    caches = [type(cache).merge([cache]) for cache in make_prompt_cache(model)]
    ids = mx.array([[i % 90 for i in range(tokens)]])
    for begin, end in ((0, 256), (256, tokens - 1), (tokens - 1, tokens)):
        model(ids[:, begin:end], cache=caches)
        mx.eval([cache.state for cache in caches if not cache.empty()])
    return sum(cache.nbytes for cache in caches)


def shape_of(config: dict[str, Any], element: int) -> ModelShape:
    shape = model_shape(config, element)
    assert isinstance(shape, ModelShape), shape
    return shape


@pytest.mark.parametrize("architecture", sorted(RULES))
def test_a_prefill_keeps_what_the_estimate_says(architecture: str) -> None:
    config = tiny_config(architecture)
    real = kept_by(made(config, mx.float32), TOKENS)
    assert kept_bytes(shape_of(config, 4), TOKENS) == real


@pytest.mark.parametrize("architecture", HALF)
def test_half_precision_halves_all_but_the_recurrent_states(architecture: str) -> None:
    config = tiny_config(architecture)
    real = kept_by(made(config, mx.bfloat16), TOKENS)
    assert kept_bytes(shape_of(config, 2), TOKENS) == real


@pytest.mark.parametrize(("queries", "keys"), [(256, 2048), (512, 4096)])
def test_an_attention_outside_the_fused_kernels_takes_what_the_formula_says(
    queries: int, keys: int
) -> None:
    """The CPU has no fused kernel, so what it allocates is the score matrix and the output."""
    heads, size = 8, 64
    shape = (1, heads, queries, size)
    q = mx.random.normal(shape)
    k = v = mx.random.normal((1, heads, keys, size))
    mx.eval(q, k)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0))
    real = mx.get_peak_memory() - before
    (layer, _), *_ = shape_of(tiny_config("qwen2"), 4).layers
    attention = layer.attention
    assert attention is not None
    attention = type(attention)(heads, size, size)
    estimate = attention_bytes(attention, 4, queries, keys, frozenset())
    assert 0.4 * estimate <= real <= 2.2 * estimate


def test_a_plan_counts_every_sequence() -> None:
    shape = shape_of(tiny_config("qwen2"), 4)
    assert Workload(context=1000, sequences=3).sequences == 3
    assert kept_bytes(shape, 1000) == 4 * 2 * 2 * 16 * 4 * 1024
