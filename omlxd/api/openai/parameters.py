"""Parameters that are not implemented: which are ignored, and which are refused by name.

What cannot change the answer is ignored; what would is refused, since an answer that silently
lacks it is found out much later. Unknown names are ignored: clients of other servers send many.
"""

from collections.abc import Mapping
from typing import Any, Final

import structlog

from omlxd.errors import UnsupportedParameter

log = structlog.get_logger(__name__)

IGNORED: Final = frozenset(
    {
        "cache_prompt",
        "cache_salt",
        "id_slot",
        "keep_alive",
        "metadata",
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
        "user",
    }
)

REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "adapter": (),
    "adapters": (),
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "conversation": (),
    "documents": ([],),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "echo": (False,),
    "enable_thinking": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "length_penalty": (1,),
    "logit_processors": ([],),
    "logits_processors": ([],),
    "lora": ([],),
    "min_tokens": (0,),
    "mirostat": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "n_probs": (0,),
    "previous_response_id": (),
    "prompt_logprobs": (),
    "reasoning": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "suffix": ("",),
    "tfs_z": (1,),
    "thinking": ({"type": "disabled"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_a": (0,),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    "xtc_probability": (0,),
}
"""Name -> the values that change nothing and pass, beside null."""


def refuse_unsupported(extra: Mapping[str, Any]) -> None:
    """Raises UnsupportedParameter for the first name that would change the answer; the log tells
    of names that nobody knows."""
    for name, value in extra.items():
        neutral = REFUSED.get(name)
        if neutral is None or value is None or value in neutral:
            continue
        raise UnsupportedParameter(_reason(name, neutral), param=name)
    unknown = [name[:64] for name in extra if name not in IGNORED and name not in REFUSED]
    if unknown:
        log.info("parameters_ignored", names=unknown[:20])


def _reason(name: str, neutral: tuple[Any, ...]) -> str:
    only = f" (only {' or '.join(map(repr, neutral))} is accepted)" if neutral else ""
    return (
        f"'{name}' is not supported by this server{only}. It would change the answer, so it is "
        "refused rather than ignored: leave it out."
    )
