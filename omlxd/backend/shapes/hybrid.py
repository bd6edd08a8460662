"""Layers of the architectures with recurrent states, with or without attention.

Keys and defaults are those that mlx-lm's model classes read.
"""

from collections.abc import Sequence

from omlxd.backend.shapes.attending import Layers, every
from omlxd.backend.shapes.blocks import (
    Config,
    NotUnderstood,
    StateSpace,
    divided_head_size,
    gated_delta,
    grouped,
    kimi_delta,
    latent,
    mamba1,
    own_head_size,
    short_convolution,
)
from omlxd.policy.footprint import LayerShape

# The words for a kind of layer, and its letter in the pattern of nemotron_h.
_NEMOTRON = {
    "full_attention": "*",
    "attention": "*",
    "linear_attention": "M",
    "mamba": "M",
    "conv": "M",
    "moe": "E",
    "mlp": "-",
}


def mixed(attends: Sequence[bool], attention: LayerShape, other: LayerShape) -> Layers:
    """One layer for each of ``attends``: ``attention`` or ``other``."""
    full = sum(attends)
    counts = ((attention, full), (other, len(attends) - full))
    return tuple((shape, count) for shape, count in counts if count)


def qwen3_next(config: Config, element: int) -> Layers:
    """Every ``full_attention_interval``-th layer attends; only these layers grow."""
    attends = every(config.number("full_attention_interval", 4), config.layers())
    return mixed(attends, grouped(config, element), gated_delta(config, element))


def olmo_hybrid(config: Config, element: int) -> Layers:
    kinds = config.names("layer_types", config.layers())
    attends = [kind != "linear_attention" for kind in kinds]
    return mixed(attends, grouped(config, element), gated_delta(config, element))


def kimi_linear(config: Config, element: int) -> Layers:
    """``linear_attn_config.kda_layers`` names the linear layers, counted from 1."""
    linear = set(config.table("linear_attn_config").numbers("kda_layers"))
    attends = [n + 1 not in linear for n in range(config.layers())]
    return mixed(attends, latent(config, element), kimi_delta(config, element))


def lfm2(config: Config, element: int) -> Layers:
    count = config.layers()
    if config.has("full_attn_idxs"):
        full = set(config.numbers("full_attn_idxs"))
        attends = [n in full for n in range(count)]
    else:
        attends = [kind == "full_attention" for kind in config.names("layer_types", count)]
    kernel, width = config.number("conv_L_cache"), config.number("hidden_size")
    return mixed(
        attends,
        grouped(config, element, head_size=divided_head_size(config)),
        short_convolution(kernel, width, element),
    )


def falcon_h1(config: Config, element: int) -> Layers:
    """Each layer attends and has a state."""
    space = StateSpace(
        kernel=config.number("mamba_d_conv", 4),
        inner=config.number("mamba_d_ssm", 1536),
        groups=config.number("mamba_n_groups", 1),
        state=config.number("mamba_d_state", 128),
    )
    size = config.number("head_dim", 64)
    attention = grouped(config, element, head_size=size)
    both = LayerShape(
        token_bytes=attention.token_bytes,
        state_bytes=space.bytes(element),
        attention=attention.attention,
    )
    return ((both, config.layers()),)


def granite_hybrid(config: Config, element: int) -> Layers:
    kinds = config.names("layer_types", config.layers())
    attends = [kind == "attention" for kind in kinds]
    attention = grouped(config, element, head_size=divided_head_size(config))
    if all(attends):
        return ((attention, len(attends)),)
    inner = config.number("mamba_n_heads") * config.number("mamba_d_head")
    space = StateSpace(
        kernel=config.number("mamba_d_conv"),
        inner=inner,
        groups=config.number("mamba_n_groups"),
        state=config.number("mamba_d_state"),
    )
    return mixed(attends, attention, LayerShape(state_bytes=space.bytes(element)))


def nemotron_h(config: Config, element: int) -> Layers:
    """One letter for each layer: M has a state, * attends, the others keep nothing."""
    letters = _nemotron_letters(config)
    space = StateSpace(
        kernel=config.number("conv_kernel"),
        inner=config.number("mamba_num_heads") * config.number("mamba_head_dim"),
        groups=config.number("n_groups"),
        state=config.number("ssm_state_size"),
    )
    attention = grouped(config, element, head_size=own_head_size(config))
    kept = (
        (attention, letters.count("*")),
        (LayerShape(state_bytes=space.bytes(element)), letters.count("M")),
        (LayerShape(), len(letters) - letters.count("*") - letters.count("M")),
    )
    return tuple((shape, count) for shape, count in kept if count)


def _nemotron_letters(config: Config) -> list[str]:
    pattern = config.get("hybrid_override_pattern")
    if pattern is None:
        key = "layers_block_type" if config.has("layers_block_type") else "layer_types"
        pattern = [_NEMOTRON.get(kind, "?") for kind in config.names(key)]
    letters = list(pattern) if isinstance(pattern, str | list) else []
    if not letters or not all(letter in ("M", "*", "E", "-") for letter in letters):
        raise NotUnderstood("config.json has no usable hybrid_override_pattern")
    return letters


def jamba(config: Config, element: int) -> Layers:
    count = config.layers()
    if config.has("layers_block_type"):
        attends = [kind == "attention" for kind in config.names("layers_block_type", count)]
    else:
        period, offset = config.number("attn_layer_period"), config.number("attn_layer_offset")
        attends = [n % period == offset for n in range(count)]
    inner = config.number("mamba_expand") * config.number("hidden_size")
    other = mamba1(config.number("mamba_d_conv"), inner, config.number("mamba_d_state"), element)
    attention = grouped(config, element, head_size=divided_head_size(config))
    return mixed(attends, attention, other)


def mamba(config: Config, element: int) -> Layers:
    inner, state = config.number("intermediate_size"), config.number("state_size")
    return ((mamba1(config.number("conv_kernel"), inner, state, element), config.layers()),)


def mamba2(config: Config, element: int) -> Layers:
    space = StateSpace(
        kernel=config.number("conv_kernel"),
        inner=config.number("num_heads") * config.number("head_dim"),
        groups=config.number("n_groups"),
        state=config.number("ssm_state_size", config.number("state_size")),
    )
    return ((LayerShape(state_bytes=space.bytes(element)), config.layers()),)
