"""Parameters that are not implemented: which are ignored, and which are refused by name.

A parameter that cannot change the answer is ignored. One that would change it is refused:
otherwise the client would notice much later that it had no effect. Unknown names are ignored:
clients of other servers send many.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import structlog

from omlxd.errors import UnsupportedParameter

log = structlog.get_logger(__name__)

IGNORED: Final = frozenset(
    {
        "cache_prompt",
        "cache_salt",
        "draft_model",
        "dry_allowed_length",
        "dry_base",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "dynatemp_exponent",
        "id_slot",
        "keep_alive",
        "metadata",
        "mirostat_eta",
        "mirostat_tau",
        "num_ctx",
        "num_draft_tokens",
        "parallel_tool_calls",
        "prediction",
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "return_progress",
        "return_token_ids",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_interval",
        "timings_per_token",
        "ttl",
        "user",
        "xtc_special_tokens",
        "xtc_threshold",
    }
)
"""Among them are parameters that only tune a refused one."""

REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "adapter": (),
    "adapters": (),
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "ban_eos_token": (False,),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "context": ([],),
    "continue_final_message": (False,),
    "conversation": (),
    "custom_logit_processor": (),
    "custom_token_bans": ("",),
    "do_sample": (True,),
    "documents": ([],),
    "dry_multiplier": (0,),
    "dynamic_temperature": (False,),
    "dynatemp_range": (0,),
    "ebnf": (),
    "echo": (False,),
    "enable_thinking": (),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "extra_body": ({},),
    "format": ("",),
    "frequency_context_size": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "guidance_scale": (1,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "images": ([],),
    "include_stop_str_in_output": (False,),
    "input_ids": (),
    "json_schema": (),
    "length_penalty": (1,),
    "logit_processors": ([],),
    "logits_processors": ([],),
    "lora": ([],),
    "lora_path": (),
    "max_length": (),
    "max_new_tokens": (),
    "max_output_tokens": (),
    "min_keep": (0, 1),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "min_tokens": (0,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "n_predict": (-1,),
    "n_probs": (0,),
    "negative_prompt": ("",),
    "no_repeat_ngram_size": (0,),
    "no_stop_trim": (False,),
    "num_beams": (1,),
    "num_predict": (-1,),
    "num_return_sequences": (1,),
    "options": ({},),
    "penalty_alpha": (0,),
    "plugins": ([],),
    "presence_context_size": (),
    "previous_response_id": (),
    "prompt_logprobs": (),
    "raw": (False,),
    "reasoning": (),
    "reasoning_budget": (-1,),
    "reasoning_effort": (),
    "regex": (),
    "repeat_last_n": (-1,),
    "repeat_penalty": (1,),
    "repetition_context_size": (),
    "repetition_penalty_range": (0,),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "role_mapping": (),
    "sampler_order": (),
    "sampler_priority": (),
    "samplers": (),
    "skip_special_tokens": (True,),
    "smoothing_factor": (0,),
    "stop_regex": ("", []),
    "stop_sequences": ([],),
    "stop_token_ids": ([],),
    "stop_words": ("", []),
    "stopping_strings": ([],),
    "structural_tag": (),
    "structured_outputs": (),
    "suffix": ("",),
    "system": ("",),
    "t_max_predict_ms": (-1, 0),
    "temperature_last": (False,),
    "template": (),
    "tfs_z": (1,),
    "think": (),
    "thinking": ({"type": "disabled"},),
    "thinking_budget": (),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_a": (0,),
    "top_n_sigma": (-1, 0),
    "transforms": ([],),
    "truncate_prompt_tokens": (),
    "typical": (1,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "watermark": (False,),
    "web_search_options": (),
    "xtc_probability": (0,),
}
"""Name -> the values that are accepted, since they change nothing. Null is always accepted."""
CHAT: Final[Mapping[str, tuple[Any, ...]]] = {**REFUSED, "add_special_tokens": (False,)}
"""In a chat, the template writes the special tokens."""
COMPLETIONS: Final[Mapping[str, tuple[Any, ...]]] = {
    **REFUSED,
    "add_special_tokens": (True,),
    "top_logprobs": (0,),
}


def refuse_unsupported(
    extra: Mapping[str, Any], refused: Mapping[str, tuple[Any, ...]] = REFUSED
) -> None:
    """Raises UnsupportedParameter for the first parameter that would change the answer.

    Unknown names are logged. ``refused``: as ``REFUSED``, for one endpoint.
    """
    for name, value in extra.items():
        neutral = refused.get(name)
        if neutral is None or value is None or any(_equal(value, one) for one in neutral):
            continue
        raise UnsupportedParameter(_reason(name, neutral), param=name)
    unknown = [name[:64] for name in extra if name not in IGNORED and name not in refused]
    if unknown:
        log.info("parameters_ignored", names=unknown[:20])


def _equal(value: Any, neutral: Any) -> bool:
    """Python takes ``True`` for 1; JSON does not."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _reason(name: str, neutral: tuple[Any, ...]) -> str:
    only = f" (only {' or '.join(map(json.dumps, neutral))} is accepted)" if neutral else ""
    return (
        f"'{name}' is not supported by this server{only}. It would change the answer, so it is "
        "refused rather than ignored: leave it out."
    )
