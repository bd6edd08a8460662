"""What a model's config and tensor names say about it: kind, context length, vision parts."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omlxd.library.catalog import ModelKind

# Where configs of transformers and mlx-lm keep the trained context; the first one found counts.
CONTEXT_KEYS = (
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "max_seq_length",
    "seq_length",
    "model_max_length",
    "n_positions",
    "n_ctx",
    "context_length",
)
TEXT_CONFIGS = ("text_config", "language_config", "llm_config")
ENCODERS = frozenset(
    {
        "albert",
        "bert",
        "distilbert",
        "electra",
        "modernbert",
        "mpnet",
        "new",
        "nomic_bert",
        "roberta",
        "xlm-roberta",
    }
)
SPEECH = frozenset({"whisper", "wav2vec2", "kokoro", "parakeet", "moonshine", "encodec"})
# First parts of tensor names that only image and sound inputs need.
SENSES = re.compile(
    r"(?:model\.)?(?:vision_tower|vision_model|vision_encoder|visual|vit|image_newline"
    r"|multi_modal_projector|mm_projector|vision_projector|embed_vision|patch_merger"
    r"|audio_tower|audio_model|embed_audio|audio_projector)(?:\.|$)"
)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part about the language model; the whole config when it has no such part."""
    for key in TEXT_CONFIGS:
        nested = config.get(key)
        if isinstance(nested, Mapping):
            return nested
    return config


def context_length(config: Mapping[str, Any]) -> int | None:
    """Tokens the model was trained for; None when its config does not say.

    A sliding window bounds what a layer sees, not the context. YaRN stretches the context
    by ``factor`` over ``original_max_position_embeddings``; the other ways of scaling are
    already part of ``max_position_embeddings``.
    """
    text = text_config(config)
    for table in (text, config):
        lengths = (_positive(table.get(key)) for key in CONTEXT_KEYS)
        trained = next((length for length in lengths if length is not None), None)
        if trained is not None:
            return max(trained, _yarn(text) or 0)
    return _yarn(text)


def _yarn(text: Mapping[str, Any]) -> int | None:
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    if not isinstance(scaling, Mapping):
        return None
    original = _positive(scaling.get("original_max_position_embeddings"))
    factor = scaling.get("factor")
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind != "yarn" or original is None or not isinstance(factor, int | float):
        return None
    return int(original * factor) if 1 <= factor <= 10_000 else None


def _positive(value: Any) -> int | None:
    """None for the absurd numbers that some configs use for "no limit"."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value < 10**9 else None


def kind_of(config: Mapping[str, Any], names: Sequence[str]) -> ModelKind:
    """``names`` are the files and folders beside the config."""
    model_type = config.get("model_type")
    architectures = config.get("architectures")
    first = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if first.endswith("ForSequenceClassification"):
        return ModelKind.RERANKER
    if model_type in ENCODERS or "modules.json" in names:
        return ModelKind.EMBEDDING
    if model_type in SPEECH:
        return ModelKind.OTHER
    if isinstance(config.get("vision_config"), Mapping):
        return ModelKind.VISION_LANGUAGE
    return ModelKind.LANGUAGE


def quantization_of(config: Mapping[str, Any]) -> str | None:
    """Such as ``4-bit``; the method's name if the bits are unknown; None for full weights."""
    for table in (config, text_config(config)):
        for key in ("quantization", "quantization_config"):
            about = table.get(key)
            if isinstance(about, Mapping):
                bits = _positive(about.get("bits"))
                method = about.get("quant_method") or about.get("mode")
                return f"{bits}-bit" if bits else str(method or "quantized")
    return None


def vision_bytes(tensors: Mapping[str, int]) -> int:
    """Bytes of those ``tensors`` (name -> bytes) that a text-only load leaves out."""
    return sum(size for name, size in tensors.items() if SENSES.match(name))
