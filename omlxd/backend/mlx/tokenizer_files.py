"""What a model folder says about its tokenizer, checked before a library reads it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from omlxd.backend.model_files import check_folder
from omlxd.errors import ModelBroken

log = structlog.get_logger(__name__)

_MODULE_NAMES = {
    "config.json": ("model_type",),
    "tokenizer_config.json": ("chat_template_type", "tool_parser_type"),
}
"""Entries from which mlx-lm makes the name of a module to import."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """
    Attributes:
        stop_tokens: ids of config.json and generation_config.json.
        processor_template: the chat template of chat_template.json, where no other file that
            transformers reads has one.
    """

    folder: Path
    stop_tokens: frozenset[int]
    processor_template: str | None


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Raises ``ModelBroken`` naming the file and the entry, ``ModelAway``."""
    check_folder(folder)
    config = _read_object(folder / "config.json")
    tokenizer_config = _read_object(folder / "tokenizer_config.json")
    _check_module_names(folder / "config.json", config)
    _check_module_names(folder / "tokenizer_config.json", tokenizer_config)
    return TokenizerFiles(
        folder=folder,
        stop_tokens=_stop_tokens(config) | _stop_tokens(_generation_config(folder)),
        processor_template=_processor_template(folder, tokenizer_config),
    )


def _read_object(file: Path) -> Mapping[str, Any]:
    """The JSON object in ``file``; empty where there is no such file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelBroken(f"{file} cannot be read: {error}", file=str(file)) from error
    if not isinstance(content, dict):
        raise ModelBroken(f"{file} holds no JSON object.", file=str(file))
    return content


def _check_module_names(file: Path, content: Mapping[str, Any]) -> None:
    for key in _MODULE_NAMES[file.name]:
        name = content.get(key)
        if name is not None and not (isinstance(name, str) and _is_module_name(name)):
            raise ModelBroken(
                f"{file}: {key} is {name!r}, which is no name of a module.", file=str(file)
            )


def _is_module_name(name: str) -> bool:
    # Hyphens occur in real model types and cannot leave a package.
    return name.isascii() and name.replace("-", "_").isidentifier()


def _generation_config(folder: Path) -> Mapping[str, Any]:
    try:
        return _read_object(folder / "generation_config.json")
    except ModelBroken as error:
        # Its defaults are a convenience: mlx-lm serves such a model too.
        log.warning("generation_config_ignored", reason=error.message)
        return {}


def _stop_tokens(config: Mapping[str, Any]) -> frozenset[int]:
    """``eos_token_id`` (a number or a list), also of the text part of a multimodal model."""
    text_config = config.get("text_config")
    nested = text_config.get("eos_token_id") if isinstance(text_config, Mapping) else None
    return _ids(config.get("eos_token_id")) | _ids(nested)


def _ids(value: Any) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(v for v in values if isinstance(v, int) and not isinstance(v, bool))


def _processor_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    others = (folder / "chat_template.jinja", folder / "additional_chat_templates")
    if tokenizer_config.get("chat_template") or any(other.exists() for other in others):
        return None
    template = _read_object(folder / "chat_template.json").get("chat_template")
    return template if isinstance(template, str) and template else None
