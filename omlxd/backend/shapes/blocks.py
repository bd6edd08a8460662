"""Reads a config.json, and computes what each kind of attention and recurrence keeps.

The formulas are those of mlx-lm's layers: the shapes of what they put into their caches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omlxd.policy.footprint import Attention, LayerShape, Scores

LARGEST = 10**9
MOST_LAYERS = 10_000


class NotUnderstood(Exception):
    """The config lacks what an estimate needs; the text is the reason."""


class Config:
    """One table of a config.json, which may hold anything. Null counts as absent, as in mlx-lm."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table

    def has(self, key: str) -> bool:
        return self._table.get(key) is not None

    def get(self, key: str) -> Any:
        return self._table.get(key)

    def number(self, key: str, default: int | None = None, *, zero: bool = False) -> int:
        """A whole number above zero, or zero if that is allowed. Raises NotUnderstood."""
        value = self._table.get(key)
        if value is None:
            value = default
        if value is None:
            raise NotUnderstood(f"config.json has no {key}")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        low = 0 if zero else 1
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= LARGEST:
            raise NotUnderstood(f"config.json has no usable {key}")
        return value

    def names(self, key: str, count: int | None = None) -> Sequence[str]:
        """The first ``count`` entries of a list of texts, or all. Raises NotUnderstood."""
        value = self._table.get(key)
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise NotUnderstood(f"config.json has no usable {key}")
        if len(value) > MOST_LAYERS or (count is not None and len(value) < count):
            raise NotUnderstood(f"config.json has no usable {key}")
        return value if count is None else value[:count]

    def numbers(self, key: str) -> Sequence[int]:
        """Raises NotUnderstood."""
        value = self._table.get(key)
        if not isinstance(value, list | tuple) or len(value) > MOST_LAYERS:
            raise NotUnderstood(f"config.json has no usable {key}")
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise NotUnderstood(f"config.json has no usable {key}")
        return value

    def largest(self, key: str, default: int) -> int:
        """A number, or the largest of a list of one number for each layer. Raises NotUnderstood."""
        if isinstance(self._table.get(key), list | tuple):
            return max(self.numbers(key), default=default)
        return self.number(key, default, zero=True)

    def table(self, key: str) -> "Config":
        """Raises NotUnderstood."""
        value = self._table.get(key)
        if not isinstance(value, Mapping):
            raise NotUnderstood(f"config.json has no {key}")
        return Config(value)

    def layers(self, key: str = "num_hidden_layers") -> int:
        """Raises NotUnderstood."""
        count = self.number(key)
        if count > MOST_LAYERS:
            raise NotUnderstood(f"config.json claims {count} layers")
        return count


STATE_BYTES = 4
"""Recurrent states are float32 with any weights (mlx_lm.models.gated_delta and ssm)."""


def grouped(
    config: Config,
    element: int,
    *,
    head_size: int | None = None,
    kv_heads: int | None = None,
    window: int | None = None,
    scores: Scores = Scores.BY_SIZE,
) -> LayerShape:
    """Multi-head or grouped-query attention: ``2 * kv_heads * head_size`` elements a token."""
    heads = config.number("num_attention_heads")
    size = head_size if head_size is not None else own_head_size(config)
    kept = kv_heads if kv_heads is not None else config.number("num_key_value_heads", heads)
    return LayerShape(
        token_bytes=2 * kept * size * element,
        window=window,
        attention=Attention(heads, size, size, scores),
    )


def own_head_size(config: Config) -> int:
    """The head size of the config, otherwise the hidden size divided by the heads."""
    return config.number("head_dim") if config.has("head_dim") else divided_head_size(config)


def divided_head_size(config: Config) -> int:
    size = config.number("hidden_size") // config.number("num_attention_heads")
    return max(1, size)


def latent(config: Config, element: int, *, nope: str = "qk_nope_head_dim") -> LayerShape:
    """MLA with absorbed projections (deepseek_v3): ``kv_lora_rank + qk_rope_head_dim`` elements
    a token for all heads together."""
    rank, rope = config.number("kv_lora_rank"), config.number("qk_rope_head_dim", zero=True)
    return LayerShape(
        token_bytes=(rank + rope) * element,
        attention=Attention(
            heads=config.number("num_attention_heads"),
            key_size=config.number(nope),
            value_size=config.number("v_head_dim"),
            latent=True,
        ),
    )


def indexed_latent(config: Config, element: int) -> LayerShape:
    """MLA with an indexer (deepseek_v32): each token has one more key of ``index_head_dim``, and a
    value of the same size, which is all zeros."""
    layer = latent(config, element)
    return LayerShape(
        token_bytes=layer.token_bytes + 2 * config.number("index_head_dim") * element,
        attention=layer.attention,
    )


def expanded(config: Config, element: int, value_size: int) -> LayerShape:
    """MLA that keeps the full keys and values of every head (deepseek_v2, minicpm3)."""
    heads = config.number("num_attention_heads")
    key_size = config.number("qk_nope_head_dim") + config.number("qk_rope_head_dim")
    return LayerShape(
        token_bytes=heads * (key_size + value_size) * element,
        attention=Attention(heads, key_size, value_size),
    )


def gated_delta(config: Config, element: int) -> LayerShape:
    """Gated DeltaNet (qwen3_next, olmo_hybrid): the last ``kernel - 1`` inputs of the
    convolutions over keys, queries and values, and a matrix for each value head."""
    value_heads = config.number("linear_num_value_heads")
    key_size = config.number("linear_key_head_dim")
    value_size = config.number("linear_value_head_dim")
    width = 2 * key_size * config.number("linear_num_key_heads") + value_size * value_heads
    kernel = config.number("linear_conv_kernel_dim")
    return LayerShape(
        state_bytes=(kernel - 1) * width * element
        + value_heads * value_size * key_size * STATE_BYTES
    )


def kimi_delta(config: Config, element: int) -> LayerShape:
    """Kimi Delta Attention (kimi_linear): three short convolutions, and a matrix for each head."""
    linear = config.table("linear_attn_config")
    heads, size = linear.number("num_heads"), linear.number("head_dim")
    kernel = linear.number("short_conv_kernel_size", 4)
    return LayerShape(
        state_bytes=3 * (kernel - 1) * heads * size * element + heads * size * size * STATE_BYTES
    )


@dataclass(frozen=True, slots=True)
class StateSpace:
    """A Mamba 2 mixer; ``inner`` is its heads times their size."""

    kernel: int
    inner: int
    groups: int
    state: int

    def bytes(self, element: int) -> int:
        """The last inputs of the convolution over ``inner + 2 * groups * state`` channels, and
        ``state`` numbers for each inner channel (mlx_lm.models.mamba2)."""
        channels = self.inner + 2 * self.groups * self.state
        return (self.kernel - 1) * channels * element + self.inner * self.state * STATE_BYTES


def mamba1(kernel: int, inner: int, state: int, element: int) -> LayerShape:
    """A Mamba 1 mixer (mamba, jamba): convolution inputs and states of ``inner`` channels, in the
    type of the weights."""
    return LayerShape(state_bytes=((kernel - 1) * inner + inner * state) * element)


def short_convolution(kernel: int, width: int, element: int) -> LayerShape:
    """A gated convolution without a recurrence (lfm2)."""
    return LayerShape(state_bytes=(kernel - 1) * width * element)
