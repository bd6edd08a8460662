"""What a model takes beyond its weights: the KV cache, and the peak of a prefill, in bytes.

Everything is computed from the shapes of the layers; nothing is measured here.
"""

from dataclasses import dataclass
from enum import Enum

KV_STEP = 256
"""Tokens by which mlx-lm's KV caches grow (``KVCache.step`` of mlx_lm.models.cache)."""
METAL_FUSED_SIZES = frozenset({64, 72, 80, 96, 128})
"""Head sizes, equal for keys and values, whose prefill is one kernel on Metal (MLX 0.32.1,
``ScaledDotProductAttention::use_fallback``). MLX has kernels for 192 and 256, but does not use
them."""
SCORE_OVERHEAD = 1.1
"""Bytes for each byte of the score matrix. Measured with MLX 0.31.2: 2.1 to 2.2 bytes for a
bfloat16 score, 4.4 for a float32 score."""
FUSED_BUFFERS = 4
"""Buffers of the size of the queries that a fused attention needs: queries, output, and copies of
both in another order (2 to 4 were measured)."""


class Scores(Enum):
    """Where the scores of a prefill are."""

    BY_SIZE = "by_size"
    """In the kernel if the head size has one, otherwise in memory."""
    IN_MEMORY = "in_memory"
    """Always in memory: the model computes them itself."""


@dataclass(frozen=True, slots=True)
class Attention:
    """How one layer attends while it prefills.

    Attributes:
        heads: query heads; key_size, value_size: elements of one head.
        latent: the layer keeps compressed keys and values (MLA). A prefill expands them for
            the whole context and adds a mask of rope scores to the scores.
    """

    heads: int
    key_size: int
    value_size: int
    scores: Scores = Scores.BY_SIZE
    latent: bool = False


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The memory that one layer keeps for one sequence.

    Attributes:
        token_bytes: bytes for each token that it keeps.
        window: the most tokens that it keeps while it decodes; None keeps all.
        state_bytes: recurrent and convolution states; they do not depend on the length.
        attention: None for a layer that does not attend.
    """

    token_bytes: int = 0
    window: int | None = None
    state_bytes: int = 0
    attention: Attention | None = None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """All facts about a model that the estimates need.

    Attributes:
        layers: each kind of layer, and how many layers of the kind there are.
        element_bytes: bytes of one activation or KV element.
        activation_width: elements that the widest layer holds for one token.
        vocabulary: number of logits of one token.
    """

    layers: tuple[tuple[LayerShape, int], ...]
    element_bytes: int
    activation_width: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Workload:
    """``sequences`` sequences of ``context`` tokens each, prefilled in chunks.

    Attributes:
        chunk: prompt tokens of one step, over all sequences together.
        fused_sizes: head sizes whose prefill attention is one kernel.
    """

    context: int
    sequences: int = 1
    chunk: int = 2048
    fused_sizes: frozenset[int] = METAL_FUSED_SIZES


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that a workload takes, without the weights.

    Attributes:
        kv: keys, values and states of all sequences at their full length.
        prefill: additional bytes of the largest chunk while it runs.
        kv_token: bytes of one more token of one sequence, at that length.
    """

    kv: int
    prefill: int
    kv_token: int

    @property
    def bytes(self) -> int:
        return self.kv + self.prefill


def footprint(shape: ModelShape, workload: Workload) -> Footprint:
    """The estimate for ``workload``."""
    return Footprint(
        kv=kept_bytes(shape, workload.context) * workload.sequences,
        prefill=prefill_bytes(shape, workload),
        kv_token=sum(
            layer.token_bytes * count
            for layer, count in shape.layers
            if layer.window is None or layer.window > workload.context
        ),
    )


def kept_bytes(shape: ModelShape, tokens: int) -> int:
    """Bytes that one sequence of ``tokens`` keeps while it decodes.

    A layer keeps ``2 * kv_heads * head_size`` elements a token, or ``kv_lora_rank + rope_size``
    with MLA, in steps of 256 tokens. A layer with a sliding window keeps no more than the window.
    A recurrent layer keeps a state of fixed size (see the classes of mlx_lm.models.cache).
    """
    return sum(_layer_kept(layer, tokens) * count for layer, count in shape.layers)


def prefill_bytes(shape: ModelShape, workload: Workload) -> int:
    """The most bytes that one chunk takes beyond the kept ones, at the end of the context.

    Layers run one after another, so only the largest counts: its attention, and the growth of
    its cache, which concatenates old and new and holds both for a moment
    (``KVCache.update_and_fetch``). Layers with a window keep ``window + chunk - 1`` tokens until
    the prompt is over (``RotatingKVCache._update_concat``), all these layers at the same time.
    The logits are those of one token for each sequence, and again in float32 as log
    probabilities.
    """
    chunk = min(workload.chunk, max(workload.context, 1) * workload.sequences)
    layers = [layer for layer, _ in shape.layers]
    largest = max((_layer_transient(layer, shape, workload, chunk) for layer in layers), default=0)
    overhang = sum(
        _overhang(layer, workload, chunk) * layer.token_bytes * count
        for layer, count in shape.layers
    )
    activations = chunk * shape.activation_width * shape.element_bytes
    logits = workload.sequences * shape.vocabulary * (shape.element_bytes + 4)
    return largest + overhang + activations + logits


def attention_bytes(
    attention: Attention, element_bytes: int, queries: int, keys: int, fused_sizes: frozenset[int]
) -> int:
    """The transient bytes of one attention over ``queries`` new and ``keys`` kept tokens.

    Fused: a few buffers of ``heads * queries * size``. Not fused: the matrix of scores, ``heads
    * queries * keys``, in the type of the computation, and the output in float32. Latent: a
    matrix of rope scores as large as the scores, the keys and values of every head for the whole
    context, and the attention itself (``DeepseekV3Attention.__call__`` of
    mlx_lm.models.deepseek_v3). In each case a mask of one byte a score, because batches of mlx-lm
    always make one.
    """
    matrix = attention.heads * queries * keys
    wide = attention.heads * (attention.key_size + attention.value_size)
    total = queries * keys
    if attention.latent:
        total += (matrix + keys * wide) * element_bytes
    sizes = {attention.key_size, attention.value_size}
    in_kernel = attention.scores is Scores.BY_SIZE and len(sizes) == 1 and sizes <= fused_sizes
    if in_kernel:
        return total + FUSED_BUFFERS * queries * attention.heads * attention.key_size * (
            element_bytes
        )
    return total + int(matrix * element_bytes * SCORE_OVERHEAD) + queries * wide * 4


def round_up(tokens: int) -> int:
    """Round up to a multiple of the tokens by which caches grow."""
    return -(-tokens // KV_STEP) * KV_STEP


def _layer_kept(layer: LayerShape, tokens: int) -> int:
    kept = round_up(tokens)
    if layer.window is not None:
        kept = min(kept, layer.window)
    return layer.token_bytes * kept + layer.state_bytes


def _overhang(layer: LayerShape, workload: Workload, chunk: int) -> int:
    """Tokens of all sequences that a windowed layer keeps beyond its window while it prefills."""
    if layer.window is None:
        return 0
    # Rounded up: three sequences with a third of a chunk each take no less than one sequence.
    own_chunk = -(-chunk // workload.sequences)
    return (
        max(0, min(workload.context, layer.window + own_chunk - 1) - layer.window)
        * workload.sequences
    )


def _layer_transient(layer: LayerShape, shape: ModelShape, workload: Workload, chunk: int) -> int:
    growing = _layer_kept(layer, workload.context) * workload.sequences
    if layer.attention is None:
        return growing
    keys = workload.context
    if layer.window is not None:
        keys = min(keys, layer.window + chunk - 1)
    return growing + attention_bytes(
        layer.attention, shape.element_bytes, chunk, keys, workload.fused_sizes
    )
