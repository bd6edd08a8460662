"""Makes the shape of a model from its config.json, without weights and without the runtime."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from omlxd.backend.shapes import attending, hybrid
from omlxd.backend.shapes.blocks import Config, NotUnderstood
from omlxd.policy.footprint import ModelShape

_Rule = Callable[[Config, int], attending.Layers]


@dataclass(frozen=True, slots=True)
class UnknownShape:
    """Why there is no estimate for this model."""

    reason: str


# Rule -> the architectures that follow it, by the names of mlx-lm's modules.
_RULES: Final[Mapping[_Rule, str]] = {
    attending.llama: "llama ministral3 smollm3",
    attending.uniform: (
        "dots1 ernie4_5 ernie4_5_moe exaone gemma glm glm4 glm4_moe hunyuan_v1_dense "
        "minimax nemotron olmo2 olmoe qwen3 qwen3_moe seed_oss telechat3"
    ),
    attending.divided: (
        "Klear apertus bailing_moe cohere deepseek granite granitemoe helium "
        "internlm2 internlm3 mimo minicpm mixtral phi phi3 phimoe qwen2 qwen2_moe stablelm "
        "starcoder2"
    ),
    attending.gemma2: "gemma2",
    attending.gpt2: "gpt2",
    attending.gpt_neox: "gpt_neox",
    attending.gpt_oss: "gpt_oss",
    attending.olmo3: "olmo3",
    attending.gemma3: "gemma3_text gemma3",
    attending.gemma3n: "gemma3n",
    attending.gemma4: "gemma4_text gemma4",
    attending.cohere2: "cohere2",
    attending.exaone4: "exaone4",
    attending.deepseek_v3: "deepseek_v3 kimi_k25 kimi_vl glm4_moe_lite mistral4",
    attending.deepseek_v32: "deepseek_v32 glm_moe_dsa",
    attending.deepseek_v2: "deepseek_v2",
    attending.minicpm3: "minicpm3",
    attending.longcat: "longcat_flash",
    hybrid.qwen3_next: "qwen3_next qwen3_5 qwen3_5_moe",
    hybrid.olmo_hybrid: "olmo_hybrid",
    hybrid.kimi_linear: "kimi_linear",
    hybrid.lfm2: "lfm2 lfm2_moe",
    hybrid.falcon_h1: "falcon_h1",
    hybrid.granite_hybrid: "granitemoehybrid",
    hybrid.nemotron_h: "nemotron_h",
    hybrid.jamba: "jamba",
    hybrid.mamba: "mamba",
    hybrid.mamba2: "mamba2",
}
RULES: Final[Mapping[str, _Rule]] = MappingProxyType(
    {name: rule for rule, names in _RULES.items() for name in names.split()}
)

# Other names of the same architectures (MODEL_REMAPPING of mlx_lm.utils), and wrappers around a
# language model whose nested config has no model type.
_SAME: Final[Mapping[str, str]] = {
    "mistral": "llama",
    "iquestcoder": "llama",
    "xverse": "llama",
    "falcon_mamba": "mamba",
    "joyai_llm_flash": "deepseek_v3",
    "kimi_k2": "deepseek_v3",
    "minimax_m2": "minimax",
    "gemma4_unified": "gemma4",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "gemma3n_text": "gemma3n",
    "lfm2-vl": "lfm2",
    "solar_open": "glm4_moe",
}
# Wrappers that run the model named in their text_config.
_WRAPPERS: Final = frozenset({"mistral3", "llava", "pixtral"})
_NESTED: Final = ("text_config", "language_config", "llm_config")


def model_shape(config: Mapping[str, Any], element_bytes: int) -> ModelShape | UnknownShape:
    """The shape of a model whose activations have ``element_bytes`` each."""
    name = str(config.get("model_type"))
    text = next((t for key in _NESTED if isinstance(t := config.get(key), Mapping)), config)
    if name in _WRAPPERS:
        inner = text.get("model_type") if text is not config else None
        name = str(inner) if inner is not None else "llama"
    rule = RULES.get(_SAME.get(name, name))
    if rule is None:
        return UnknownShape(f"the architecture '{name[:60]}' is not known to the estimate")
    table = Config(text)
    try:
        return ModelShape(
            layers=rule(table, element_bytes),
            element_bytes=element_bytes,
            activation_width=_activation_width(table),
            vocabulary=_vocabulary(table, Config(config)),
        )
    except NotUnderstood as why:
        return UnknownShape(str(why))


def _vocabulary(text: Config, whole: Config) -> int:
    return (text if text.has("vocab_size") else whole).number("vocab_size")


def _activation_width(config: Config) -> int:
    """Elements that a layer holds for one token where it is widest.

    These are the residual stream, its norm, and queries or output; then gate, up and their product
    (``SwiGLU``). With experts, gate, up and product count for each expert of a token, as do the
    inputs and outputs of the experts (mlx_lm.models.switch_layers).
    """
    hidden = config.number("hidden_size", config.number("n_embd", 1))
    dense = 3 * config.largest("intermediate_size", 4 * hidden)
    experts = config.number("num_experts_per_tok", 0, zero=True)
    if experts == 0:
        return 4 * hidden + dense
    own = config.largest("moe_intermediate_size", dense // 3)
    return 4 * hidden + max(dense, experts * (2 * hidden + 3 * own))
