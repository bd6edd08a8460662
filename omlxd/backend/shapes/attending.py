"""Layers of the architectures with attention only: full, with a window, or compressed.

Keys and defaults are those that mlx-lm's model classes read.
"""

from collections import Counter
from collections.abc import Iterable

from omlxd.backend.shapes.blocks import (
    Config,
    NotUnderstood,
    divided_head_size,
    expanded,
    grouped,
    indexed_latent,
    latent,
    own_head_size,
)
from omlxd.policy.footprint import LayerShape, Scores

Layers = tuple[tuple[LayerShape, int], ...]


def uniform(config: Config, element: int) -> Layers:
    """Every layer keeps all tokens; the config may set the head size."""
    return ((grouped(config, element), config.layers()),)


def divided(config: Config, element: int) -> Layers:
    """The same, but mlx-lm ignores ``head_dim`` and divides the hidden size by the heads."""
    size = divided_head_size(config)
    return ((grouped(config, element, head_size=size), config.layers()),)


def gemma2(config: Config, element: int) -> Layers:
    """The model caps its scores, so it computes them itself."""
    return ((grouped(config, element, scores=Scores.IN_MEMORY), config.layers()),)


def gpt_neox(config: Config, element: int) -> Layers:
    """The number of KV heads is always the number of heads; the config's own is ignored."""
    heads, size = config.number("num_attention_heads"), divided_head_size(config)
    return ((grouped(config, element, head_size=size, kv_heads=heads), config.layers()),)


def gpt2(config: Config, element: int) -> Layers:
    heads = config.number("n_head")
    size = max(1, config.number("n_embd") // heads)
    table = {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": size}
    return ((grouped(Config(table), element), config.layers("n_layer")),)


def typed(config: Config, element: int, *, full_by_default: bool = False) -> Layers:
    """``layer_types`` says which layers have a sliding window."""
    count = config.layers()
    if not config.has("layer_types") and full_by_default:
        types: Iterable[str] = ["full_attention"] * count
    else:
        types = config.names("layer_types", count)
    return windowed(config, element, [kind == "full_attention" for kind in types])


def llama(config: Config, element: int) -> Layers:
    return typed(config, element, full_by_default=True)


def gpt_oss(config: Config, element: int) -> Layers:
    """Without ``layer_types`` every second layer is full."""
    if config.has("layer_types"):
        return typed(config, element)
    return windowed(config, element, [bool(n % 2) for n in range(config.layers())])


def olmo3(config: Config, element: int) -> Layers:
    """Without ``layer_types`` every fourth layer is full."""
    if config.has("layer_types"):
        return typed(config, element)
    return windowed(config, element, every(4, config.layers()))


def gemma3(config: Config, element: int) -> Layers:
    """Every ``sliding_window_pattern``-th layer is full. Multimodal configs omit many keys."""
    full = every(config.number("sliding_window_pattern", 6), config.number("num_hidden_layers", 26))
    heads, kept = config.number("num_attention_heads", 8), config.number("num_key_value_heads", 4)
    table = {
        "num_attention_heads": heads,
        "num_key_value_heads": kept,
        "head_dim": config.number("head_dim", 256),
        "sliding_window": config.number("sliding_window", 512),
    }
    return windowed(Config(table), element, full)


def cohere2(config: Config, element: int) -> Layers:
    return windowed(
        config, element, every(config.number("sliding_window_pattern", 4), config.layers())
    )


def exaone4(config: Config, element: int) -> Layers:
    """``sliding_window_pattern`` is a text such as ``LLLG``: L is local, G is global."""
    pattern, count = config.get("sliding_window_pattern"), config.layers()
    if not pattern:
        return uniform(config, element)
    if not isinstance(pattern, str):
        raise NotUnderstood("config.json has no usable sliding_window_pattern")
    return windowed(config, element, [pattern[n % len(pattern)] != "L" for n in range(count)])


def gemma3n(config: Config, element: int) -> Layers:
    """The last ``num_kv_shared_layers`` use the cache of an earlier layer."""
    own = config.layers() - config.number("num_kv_shared_layers", zero=True)
    types = config.names("layer_types", config.layers())[: max(0, own)]
    return windowed(config, element, [kind == "full_attention" for kind in types])


def gemma4(config: Config, element: int) -> Layers:
    """Full layers have wider heads and may have their own number of KV heads. The last layers
    share the caches of earlier ones (20 layers if the config does not say)."""
    count = config.layers()
    own = max(0, count - config.number("num_kv_shared_layers", 20, zero=True))
    if config.has("layer_types"):
        full = [kind == "full_attention" for kind in config.names("layer_types", count)]
    else:
        full = every(config.number("sliding_window_pattern", 5), count)
    kv_heads = config.number("num_key_value_heads", 1)
    global_heads = kv_heads
    if config.get("attention_k_eq_v"):
        global_heads = config.number("num_global_key_value_heads", kv_heads)
    table = Config({"num_attention_heads": config.number("num_attention_heads", 8)})
    narrow = config.number("head_dim", 256)
    wide = config.number("global_head_dim", 512)
    window = config.number("sliding_window", 512)
    kinds = Counter(full[:own])
    return tuple(
        (shape, kinds[is_full])
        for is_full, shape in (
            (True, grouped(table, element, head_size=wide, kv_heads=global_heads)),
            (False, grouped(table, element, head_size=narrow, kv_heads=kv_heads, window=window)),
        )
        if kinds[is_full]
    )


def deepseek_v3(config: Config, element: int) -> Layers:
    return ((latent(config, element), config.layers()),)


def deepseek_v32(config: Config, element: int) -> Layers:
    return ((indexed_latent(config, element), config.layers()),)


def longcat(config: Config, element: int) -> Layers:
    """Each layer has two attentions, each with a cache."""
    return ((latent(config, element), 2 * config.layers("num_layers")),)


def deepseek_v2(config: Config, element: int) -> Layers:
    return ((expanded(config, element, config.number("v_head_dim")), config.layers()),)


def minicpm3(config: Config, element: int) -> Layers:
    """The size of a value is the hidden size over the heads."""
    return ((expanded(config, element, divided_head_size(config)), config.layers()),)


def every(period: int, count: int) -> list[bool]:
    """True for the last of each ``period`` layers."""
    return [n % period == period - 1 for n in range(count)]


def windowed(config: Config, element: int, full: Iterable[bool]) -> Layers:
    """One layer for each of ``full``: a full one, or one with a window of ``sliding_window``."""
    kinds = Counter(full)
    size = own_head_size(config)
    found: list[tuple[LayerShape, int]] = []
    if kinds[True]:
        found.append((grouped(config, element, head_size=size), kinds[True]))
    if kinds[False]:
        window = config.number("sliding_window")
        found.append((grouped(config, element, head_size=size, window=window), kinds[False]))
    return tuple(found)
