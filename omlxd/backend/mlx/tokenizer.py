"""A model folder's tokenizer and chat template, read without network and without its code."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from omlxd.backend.mlx.backend import import_mlx_lm, reason_of
from omlxd.backend.mlx.coding import Joining, coding_of
from omlxd.backend.mlx.sandbox import Check, bound_templates, checked_by
from omlxd.backend.model_files import check_folder, first_bad_name
from omlxd.errors import ModelBroken, ModelLoadFailed, NoChatTemplate, TemplateFailed

log = structlog.get_logger(__name__)

_RESERVED_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of transformers' ``apply_chat_template`` itself; no template can have them."""

_LONGEST_REASON = 1000
"""Characters of an error message that are passed on."""


_MODULE_NAMES = {
    "config.json": ("model_type",),
    "tokenizer_config.json": ("chat_template_type", "tool_parser_type"),
}
"""Entries from which mlx-lm makes the name of a module that it imports."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What the folder says about its tokenizer.

    Attributes:
        stop_tokens: ids of config.json and generation_config.json.
        processor_template: the chat template of chat_template.json, if none of the files that
            transformers reads has one.
    """

    folder: Path
    stop_tokens: frozenset[int]
    processor_template: str | None


def load_tokenizer(path: str) -> "MlxTokenizer":
    """The tokenizer of the model folder ``path``. It takes up to seconds, so call it on a thread.

    It evaluates no MLX array. Raises ``ModelBroken`` naming the file at fault,
    ``ModelLoadFailed`` when a package that it needs is not installed, ``ModelAway``.
    """
    files = read_tokenizer_files(Path(path))
    # Imported here, because it takes seconds, and the loading thread may take this time.
    import_mlx_lm()
    bound_templates()
    from mlx_lm.utils import load_tokenizer as load

    extra: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    if files.processor_template is not None:
        extra["chat_template"] = files.processor_template
    try:
        wrapper = load(files.folder, extra, eos_token_ids=sorted(files.stop_tokens) or None)
        return MlxTokenizer(wrapper, files)
    except ImportError as error:
        log.exception("tokenizer_load_failed", path=path)
        raise ModelLoadFailed(
            f"The tokenizer in {path} needs something that is not installed: {error}"
        ) from error
    except Exception as error:
        # For a damaged file tokenizers raises plain Exception, and transformers nearly any error.
        log.exception("tokenizer_load_failed", path=path)
        raise _broken(Path(path), error) from error


def _broken(folder: Path, error: Exception) -> ModelBroken:
    if "trust_remote_code" in str(error):
        file = folder / "tokenizer_config.json"
        return ModelBroken(
            f"{file} asks for code of its own (auto_map), and code in a model folder is never "
            "run. Use a conversion with a plain tokenizer.json.",
            file=str(file),
        )
    names = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
    files = [folder / name for name in names]
    file = next((file for file in files if file.exists()), files[0])
    return ModelBroken(
        f"{file} cannot be loaded as a tokenizer ({reason_of(error)}).", file=str(file)
    )


class MlxTokenizer:
    """Fits ``text.protocol.Tokenizer``; ``wrapper`` is mlx-lm's tokenizer wrapper."""

    def __init__(self, wrapper: Any, files: TokenizerFiles) -> None:
        self._wrapper = wrapper
        self._name = files.folder.name
        self._coding = coding_of(wrapper)
        self._has_chat_template = bool(wrapper.has_chat_template) and wrapper.chat_template != ""
        self._wants_parts: bool | None = None
        self.vocab_size = len(wrapper)
        self.stop_tokens = frozenset(wrapper.eos_token_ids) | files.stop_tokens

    @property
    def special_tokens(self) -> frozenset[int]:
        return self._coding.special_tokens

    @property
    def has_chat_template(self) -> bool:
        return self._has_chat_template

    @property
    def joining(self) -> Joining:
        return self._coding.joining

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._coding.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        return self._coding.decode(tokens, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token: int) -> bytes:
        return self._coding.token_bytes(token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_arguments: Mapping[str, Any],
        check: Check,
    ) -> str:
        if not self._has_chat_template:
            raise NoChatTemplate(self._name)
        reserved = sorted(_RESERVED_ARGUMENTS & template_arguments.keys())
        if reserved:
            raise TemplateFailed(
                f"The template arguments configured for this model hold {', '.join(reserved)}, "
                "which is set by the server. Remove it from the configuration.",
                param="messages",
            )
        try:
            with checked_by(check):
                return self._apply(self._shaped(messages, template_arguments), template_arguments)
        except TemplateFailed:
            raise
        except Exception as error:
            # The template is a program that came with the model, and may raise any exception.
            log.info("chat_template_failed", model=self._name, kind=type(error).__name__)
            raise _template_error(error) from error

    def _apply(
        self, messages: Sequence[Mapping[str, Any]], template_arguments: Mapping[str, Any]
    ) -> str:
        text: str = self._wrapper.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **template_arguments
        )
        return text

    def _shaped(
        self, messages: Sequence[Mapping[str, Any]], template_arguments: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        if self._wants_parts is None:
            self._wants_parts = self._find_whether_it_wants_parts(template_arguments)
        return [_with_parts(m) for m in messages] if self._wants_parts else messages

    def _find_whether_it_wants_parts(self, template_arguments: Mapping[str, Any]) -> bool:
        """Some templates read content only as a list of parts, and render nothing for a string."""
        probe = {"role": "user", "content": "marker"}
        return not self._shows(probe, template_arguments) and self._shows(
            _with_parts(probe), template_arguments
        )

    def _shows(self, message: Mapping[str, Any], template_arguments: Mapping[str, Any]) -> bool:
        try:
            return "marker" in self._apply([message], template_arguments)
        except TemplateFailed:
            raise
        except Exception:  # noqa: BLE001 - a template may raise anything, and then shows nothing
            return False


def _with_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _template_error(error: Exception) -> TemplateFailed | ModelBroken:
    from jinja2 import TemplateSyntaxError

    if isinstance(error, TemplateSyntaxError):
        return ModelBroken(
            f"The model's chat template is wrong in line {error.lineno}: "
            f"{str(error.message).rstrip('.')}. It cannot take any messages before "
            "chat_template.jinja or tokenizer_config.json in the model's folder is mended; "
            "/v1/completions needs no template."
        )
    return TemplateFailed(
        f"The model's chat template refused these messages: {_reason(error)}", param="messages"
    )


def _reason(error: Exception) -> str:
    """The template's own message for its errors; for errors of Python their class as well."""
    text = str(error)[:_LONGEST_REASON]
    own = type(error).__module__.startswith("jinja2") and text
    return text if own else f"{type(error).__name__}: {text}"


# The files


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Raises ``ModelBroken`` naming the file and the entry, or ``ModelAway``."""
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
    """The JSON object in ``file``; empty if there is no such file."""
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
    if (bad := first_bad_name(content, _MODULE_NAMES[file.name])) is not None:
        key, name = bad
        raise ModelBroken(
            f"{file}: {key} is {name!r}, which is no name of a module.", file=str(file)
        )


def _generation_config(folder: Path) -> Mapping[str, Any]:
    try:
        return _read_object(folder / "generation_config.json")
    except ModelBroken as error:
        # The model works without its defaults, and mlx-lm serves such a model too.
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
