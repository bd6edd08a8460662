"""What a model will take beyond its weights: KV of so many tokens, and the peak of a prefill.

Everything is computed from the shapes of the layers; nothing is measured here. Sizes are bytes.
"""

from dataclasses import dataclass
from enum import Enum

KV_STEP = 256
"""Tokens by which mlx-lm's KV caches grow (``KVCache.step`` of mlx_lm.models.cache)."""
METAL_FUSED_SIZES = frozenset({64, 72, 80, 96, 128})
"""Head sizes whose prefill runs in one kernel on Metal, keys and values alike (MLX 0.32.1,
``ScaledDotProductAttention::use_fallback``). 192 and 256 have kernels that are not chosen."""
SCORE_OVERHEAD = 1.1
"""Bytes for each byte of the score matrix: 2.1 to 2.2 a bfloat16 score and 4.4 a float32 one
were measured with MLX 0.31.2."""
FUSED_BUFFERS = 4
"""Buffers as large as the queries around a fused attention: queries, output, and their copies
in another order (2 to 4 were measured)."""


class Scores(Enum):
    """Where the scores of a prefill live."""

    BY_SIZE = "by_size"
    """Inside the kernel for the head sizes that have one, else in memory."""
    IN_MEMORY = "in_memory"
    """The model computes them itself, whatever the head size."""


@dataclass(frozen=True, slots=True)
class Attention:
    """How one layer attends while it prefills.

    Attributes:
        heads: query heads; key_size, value_size: elements of one head.
        latent: it keeps compressed keys and values (MLA), which a prefill expands for the
            whole context, and adds a mask of rope scores to the scores.
    """

    heads: int
    key_size: int
    value_size: int
    scores: Scores = Scores.BY_SIZE
    latent: bool = False


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps for one sequence.

    Attributes:
        token_bytes: for each token that it keeps.
        window: the most tokens it keeps once it decodes; None keeps all.
        state_bytes: whatever the length: recurrent and convolution states.
        attention: None for a layer that does not attend.
    """

    token_bytes: int = 0
    window: int | None = None
    state_bytes: int = 0
    attention: Attention | None = None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Everything that the estimates need to know of a model.

    Attributes:
        layers: each kind of layer with how many there are of it.
        element_bytes: of one activation or KV element.
        activation_width: elements that the widest layer holds for one token at a time.
        vocabulary: logits of one token.
    """

    layers: tuple[tuple[LayerShape, int], ...]
    element_bytes: int
    activation_width: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked: so many sequences of so many tokens each, prefilled in chunks.

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
    """The answer, beside the weights.

    Attributes:
        kv: keys, values and states of all sequences at their full length.
        prefill: what the largest chunk takes on top of that while it runs.
        kv_token: how much one more token of one sequence takes, at that length.
    """

    kv: int
    prefill: int
    kv_token: int

    @property
    def bytes(self) -> int:
        return self.kv + self.prefill


def footprint(shape: ModelShape, plan: Plan) -> Footprint:
    """The estimate for ``plan``."""
    return Footprint(
        kv=kept_bytes(shape, plan.context) * plan.sequences,
        prefill=prefill_bytes(shape, plan),
        kv_token=sum(
            layer.token_bytes * count
            for layer, count in shape.layers
            if layer.window is None or layer.window > plan.context
        ),
    )


def kept_bytes(shape: ModelShape, tokens: int) -> int:
    """One sequence of ``tokens`` while it decodes.

    Layers keep ``2 * kv_heads * head_size`` elements a token, or ``kv_lora_rank +
    rope_size`` with MLA, in steps of 256 tokens; those with a sliding window no more than the
    window; recurrent layers a state of fixed size (the cache classes of mlx_lm.models.cache).
    """
    return sum(_layer_kept(layer, tokens) * count for layer, count in shape.layers)


def prefill_bytes(shape: ModelShape, plan: Plan) -> int:
    """The most that one chunk takes beyond what is kept, at the end of the context.

    Layers run one after another, so the hungriest one counts: its attention, and its cache
    growing, which concatenates the old and the new and holds both for a moment
    (``KVCache.update_and_fetch``). Windowed layers keep ``window + chunk - 1`` tokens until the
    prompt is over (``RotatingKVCache._update_concat``), all of them at once. The logits are
    those of one token a sequence, in float32 as log-probabilities beside themselves.
    """
    chunk = min(plan.chunk, max(plan.context, 1) * plan.sequences)
    layers = [layer for layer, _ in shape.layers]
    hungriest = max((_layer_transient(layer, shape, plan, chunk) for layer in layers), default=0)
    overhang = sum(
        _overhang(layer, plan, chunk) * layer.token_bytes * count for layer, count in shape.layers
    )
    activations = chunk * shape.activation_width * shape.element_bytes
    logits = plan.sequences * shape.vocabulary * (shape.element_bytes + 4)
    return hungriest + overhang + activations + logits


def attention_bytes(
    attention: Attention, element_bytes: int, queries: int, keys: int, fused_sizes: frozenset[int]
) -> int:
    """The transient of one attention over ``queries`` new and ``keys`` kept tokens.

    Fused: a few buffers of ``heads * queries * size``. Not fused: the matrix of scores, ``heads
    * queries * keys``, in the type of the computation, and the output in float32. Latent: a
    matrix of rope scores as large as the scores, keys and values of every head for the whole
    context, then the attention itself (``DeepseekV3Attention.__call__`` of
    mlx_lm.models.deepseek_v3). A mask of one byte a score is there in any case, since batches
    of mlx-lm always make one.
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
    """To the step in which caches grow."""
    return -(-tokens // KV_STEP) * KV_STEP


def _layer_kept(layer: LayerShape, tokens: int) -> int:
    kept = round_up(tokens)
    if layer.window is not None:
        kept = min(kept, layer.window)
    return layer.token_bytes * kept + layer.state_bytes


def _overhang(layer: LayerShape, plan: Plan, chunk: int) -> int:
    """Tokens that a windowed layer keeps beyond its window while it prefills, all sequences."""
    if layer.window is None:
        return 0
    # Rounded up: three that share a chunk must not seem to take less than one that has it all.
    own_chunk = -(-chunk // plan.sequences)
    return max(0, min(plan.context, layer.window + own_chunk - 1) - layer.window) * plan.sequences


def _layer_transient(layer: LayerShape, shape: ModelShape, plan: Plan, chunk: int) -> int:
    growing = _layer_kept(layer, plan.context) * plan.sequences
    if layer.attention is None:
        return growing
    keys = plan.context
    if layer.window is not None:
        keys = min(keys, layer.window + chunk - 1)
    return growing + attention_bytes(
        layer.attention, shape.element_bytes, chunk, keys, plan.fused_sizes
    )
