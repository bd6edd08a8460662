"""Tiny models with random, seeded weights: one for each kind of cache and layer.

A few hundred kilobytes each, with a real byte-level tokenizer and chat template, in the folder
layout of any other model. Their text is noise, but it is generated as by a large model.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from omlxd.backend.mlx.backend import import_mlx_lm

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = "<|im_end|>"
VOCABULARY = 1024

_DENSE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
_ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"mlp_bias": False},
    "qwen3": {},
    "gemma3_text": {
        "num_hidden_layers": 3,
        "sliding_window": 32,
        "sliding_window_pattern": 3,
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 16,
        "tie_word_embeddings": True,
    },
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": None,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": _EXPERTS,
    "mamba2": {
        "num_heads": 4,
        "head_dim": 32,
        "state_size": 16,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": "auto",
    },
    "qwen3_next": {
        **_EXPERTS,
        "num_hidden_layers": 4,
        "shared_expert_intermediate_size": 32,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "partial_rotary_factor": 0.5,
    },
    "lfm2": {
        "num_hidden_layers": 3,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_ff_dim": 128,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "conv", "full_attention"],
        "tie_word_embeddings": True,
    },
    "falcon_h1": {
        "mamba_d_ssm": 64,
        "mamba_d_head": 32,
        "mamba_n_heads": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
    },
}
ARCHITECTURES = tuple(_ARCHITECTURES)

_BUILT: dict[tuple[str, str, str], Path] = {}


def tiny_model(root: Path, arch: str, seed: int = 0, **overrides: Any) -> Path:
    """The folder of a tiny model below ``root``, made at most once.

    ``overrides`` are entries of its config, and two special keys: ``bits`` quantises it in groups
    of 32, ``chat_template=None`` leaves the template out.
    """
    recipe = json.dumps([seed, overrides], sort_keys=True)
    key = (str(root), arch, recipe)
    if key not in _BUILT or not _BUILT[key].exists():
        digest = hashlib.sha256(recipe.encode()).hexdigest()[:8]
        folder = root / f"tiny-{arch}-{digest}"
        if folder.exists():
            shutil.rmtree(folder)
        _build(folder, arch, seed, dict(overrides))
        _BUILT[key] = folder
    return _BUILT[key]


def _build(folder: Path, arch: str, seed: int, overrides: dict[str, Any]) -> None:
    import_mlx_lm()
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_unflatten
    from mlx_lm.utils import _get_classes, quantize_model

    bits = overrides.pop("bits", None)
    template = overrides.pop("chat_template", CHAT_TEMPLATE)
    config = _config(arch, overrides)
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    tied = bool(config["tie_word_embeddings"])
    weights = [
        (name, mx.array(_weight(name, array.shape, seed, arch, tied)))
        for name, array in tree_flatten(model.parameters())
        if not (tied and name.startswith("lm_head."))
    ]
    if bits is not None:
        model.update(tree_unflatten(weights))
        model, config = quantize_model(model, config, 32, bits)
        weights = tree_flatten(model.parameters())
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights), {"format": "mlx"})
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": _tokenizer().token_to_id(EOS)})
    write_tokenizer(folder, template)


def write_tokenizer(folder: Path, chat_template: str | None = CHAT_TEMPLATE) -> None:
    """Write tokenizer.json and tokenizer_config.json; all tiny models have the same."""
    _tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": SPECIAL[0],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    _write_json(folder / "tokenizer_config.json", config)


def _config(arch: str, overrides: dict[str, Any]) -> dict[str, Any]:
    tokenizer = _tokenizer()
    return {
        **_DENSE,
        **_ARCHITECTURES[arch],
        "model_type": arch,
        "vocab_size": VOCABULARY,
        "bos_token_id": tokenizer.token_to_id(SPECIAL[0]),
        "eos_token_id": tokenizer.token_to_id(EOS),
        "torch_dtype": "float32",
        **overrides,
    }


@cache
def _tokenizer() -> Tokenizer:
    """Byte-level BPE: it encodes any text without loss; many characters take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=1,
        special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    # Every id that the model can generate must be a token.
    tokenizer.add_tokens([f"filler{n}" for n in range(VOCABULARY - tokenizer.get_vocab_size())])
    return tokenizer


def _texts() -> list[str]:
    return [
        "The user asks a question and the assistant answers it in a few plain words.",
        "A sentence about the sea, the mountains, the weather and what people do all day long.",
        "One, two, three, four, five, six, seven, eight, nine and ten are the first numbers.",
        "Příliš žluťoučký kůň úpěl ďábelské ódy.",
        "def answer(question: str) -> str:\n    return 'because ' + question\n",
        "When the machine has little memory left, work has to wait until there is some again.",
        "日本語の文章と中文的句子。",
    ]


def _weight(
    name: str, shape: tuple[int, ...], seed: int, arch: str, tied: bool
) -> "np.ndarray[Any, Any]":
    """The value of one parameter, from its own random stream.

    Scaled so that answers depend on the whole context and logits have no near ties: lively
    layers, small embeddings, decays slow enough to remember.
    """
    digest = hashlib.sha256(f"{seed}/{arch}/{name}".encode()).digest()
    stream = np.random.RandomState(np.frombuffer(digest[:16], np.uint32))
    return _draw(name, shape, stream, arch, tied).astype(np.float32)


def _draw(
    name: str, shape: tuple[int, ...], stream: np.random.RandomState, arch: str, tied: bool
) -> "np.ndarray[Any, Any]":
    last = name.rsplit(".", 1)[-1]
    special: dict[str, Callable[[], Any]] = {
        "A_log": lambda: stream.uniform(np.log(0.01), 0.0, shape),
        "dt_bias": lambda: np.log(np.expm1(stream.uniform(0.01, 0.2, shape))),
        "D": lambda: 1.0 + 0.1 * stream.standard_normal(shape),
        "sinks": lambda: 0.5 * stream.standard_normal(shape),
    }
    if last in special:
        return np.asarray(special[last]())
    noise = stream.standard_normal(shape)
    if len(shape) == 1:
        if "norm" not in name or last != "weight":
            return 0.05 * noise
        final = name in ("model.norm.weight", "model.embedding_norm.weight")
        centre = 10.0 if final and tied else 1.0
        if name.split(".")[-2] in ("q_norm", "k_norm", "q_layernorm", "k_layernorm"):
            centre = 2.0
        return centre - (arch == "gemma3_text") + 0.1 * noise
    if "embed" in name:
        return 0.03 * noise
    if "lm_head" in name:
        return noise * float(4.0 / np.sqrt(shape[-1]))
    if "conv" in name and shape[-1] == 1:
        return noise / float(np.sqrt(shape[1]))
    return noise * float(1.5 / np.sqrt(shape[-1]))


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
