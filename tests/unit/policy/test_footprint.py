"""The arithmetic of the estimates, on shapes made by hand."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omlxd.policy.footprint import (
    KV_STEP,
    Attention,
    LayerShape,
    ModelShape,
    Scores,
    Workload,
    attention_bytes,
    footprint,
    kept_bytes,
    prefill_bytes,
    round_up,
)
from omlxd.units import GiB, MiB

FUSED = frozenset({64, 128})


def shape(*layers: tuple[LayerShape, int], element: int = 2) -> ModelShape:
    return ModelShape(layers, element, activation_width=1000, vocabulary=100)


FULL = LayerShape(token_bytes=1024, attention=Attention(8, 128, 128))
SLIDING = LayerShape(token_bytes=1024, window=512, attention=Attention(8, 128, 128))
RECURRENT = LayerShape(state_bytes=5000)


def test_full_layers_keep_everything_in_steps_of_256_tokens() -> None:
    assert kept_bytes(shape((FULL, 3)), 257) == 3 * 1024 * 512
    assert kept_bytes(shape((FULL, 3)), 256) == 3 * 1024 * 256


def test_windowed_layers_keep_their_window() -> None:
    assert kept_bytes(shape((SLIDING, 2)), 100_000) == 2 * 1024 * 512
    assert kept_bytes(shape((SLIDING, 2)), 10) == 2 * 1024 * 256


def test_a_window_below_a_step_is_kept_exactly() -> None:
    narrow = LayerShape(token_bytes=1, window=100)
    assert kept_bytes(shape((narrow, 1)), 5000) == 100


def test_recurrent_layers_keep_the_same_whatever_the_length() -> None:
    assert kept_bytes(shape((RECURRENT, 4)), 1) == kept_bytes(shape((RECURRENT, 4)), 10**6)


def test_a_model_without_growing_layers_has_no_bytes_a_token() -> None:
    assert footprint(shape((RECURRENT, 4)), Workload(context=5000)).kv_token == 0
    assert footprint(shape((SLIDING, 1), (FULL, 2)), Workload(context=5000)).kv_token == 2048


def test_deepseek_v3_keeps_70272_bytes_a_token() -> None:
    """61 layers of 512 + 64 elements of 2 bytes, for any number of heads."""
    layer = LayerShape(token_bytes=576 * 2, attention=Attention(128, 128, 128, latent=True))
    assert footprint(shape((layer, 61)), Workload(context=1)).kv_token == 70_272


def test_a_fused_attention_does_not_grow_with_the_context() -> None:
    attention = Attention(64, 128, 128)
    short = attention_bytes(attention, 2, 4096, 4096, FUSED)
    long = attention_bytes(attention, 2, 4096, 131_072, FUSED)
    assert long - short == 4096 * (131_072 - 4096)  # the mask, a byte each
    assert 64 * MiB <= short - 4096 * 4096 <= 512 * MiB


def test_an_attention_without_a_kernel_holds_every_score() -> None:
    attention = Attention(64, 256, 256)
    size = attention_bytes(attention, 2, 4096, 131_072, FUSED)
    assert 64 * GiB < size < 75 * GiB


@pytest.mark.parametrize(
    "attention",
    [
        Attention(64, 192, 128),
        Attention(64, 96, 96),
        Attention(64, 128, 128, scores=Scores.IN_MEMORY),
    ],
)
def test_other_sizes_and_own_scores_are_not_fused(attention: Attention) -> None:
    matrix = 64 * 1024 * 8192 * 2
    assert attention_bytes(attention, 2, 1024, 8192, FUSED) > matrix


def test_latent_attention_is_never_cheap() -> None:
    """Rope scores as a mask, and keys and values of every head for the whole context."""
    plain = attention_bytes(Attention(128, 128, 128), 2, 2048, 65_536, FUSED)
    latent = attention_bytes(Attention(128, 128, 128, latent=True), 2, 2048, 65_536, FUSED)
    assert latent - plain == 128 * 2048 * 65_536 * 2 + 65_536 * 128 * 256 * 2


def test_windowed_layers_hold_a_chunk_more_while_they_prefill() -> None:
    model = shape((SLIDING, 10))
    small = prefill_bytes(model, Workload(context=100_000, chunk=256))
    large = prefill_bytes(model, Workload(context=100_000, chunk=2048))
    assert large - small > 10 * 1024 * (2048 - 256)


def test_the_chunk_is_no_longer_than_the_prompt() -> None:
    model = shape((FULL, 1))
    assert prefill_bytes(model, Workload(context=10, chunk=10_000)) == prefill_bytes(
        model, Workload(context=10, chunk=10)
    )


tokens = st.integers(1, 200_000)
layer = st.builds(
    LayerShape,
    token_bytes=st.integers(0, 4096),
    window=st.none() | st.integers(1, 4096),
    state_bytes=st.integers(0, 10**6),
    attention=st.none() | st.builds(Attention, st.integers(1, 64), st.just(128), st.just(128)),
)
models = st.lists(st.tuples(layer, st.integers(1, 80)), min_size=1, max_size=3).map(
    lambda layers: ModelShape(tuple(layers), 2, 1000, 100)
)


@given(models, tokens, tokens, st.integers(1, 16))
@example(ModelShape(((LayerShape(1601, 1, 0, None), 4),), 2, 1000, 100), 2047, 2047, 3)
def test_more_tokens_and_more_sequences_never_take_less(
    model: ModelShape, one: int, other: int, sequences: int
) -> None:
    low, high = sorted((one, other))
    few = footprint(model, Workload(context=low))
    assert footprint(model, Workload(context=high)).bytes >= few.bytes
    assert footprint(model, Workload(context=low, sequences=sequences)).bytes >= few.bytes


@given(models, tokens)
def test_the_kv_of_many_sequences_is_that_of_one_so_often(model: ModelShape, context: int) -> None:
    one = footprint(model, Workload(context=context)).kv
    assert footprint(model, Workload(context=context, sequences=5)).kv == 5 * one


@given(tokens)
def test_a_step_is_never_more_than_255_tokens_too_much(count: int) -> None:
    assert 0 <= round_up(count) - count < KV_STEP
