"""A model folder's tokenizer and chat template, read without network and without its code."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from omlxd.backend.mlx.coding import coding_of
from omlxd.backend.mlx.failures import reason_of
from omlxd.backend.mlx.imports import import_mlx_lm
from omlxd.backend.mlx.sandbox import Check, bound_templates, checked_by
from omlxd.backend.mlx.token_bytes import Joining
from omlxd.backend.mlx.tokenizer_files import TokenizerFiles, read_tokenizer_files
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
"""What transformers' ``apply_chat_template`` takes itself: no variables of a template."""

_LONGEST_REASON = 1000
"""Characters of an error message that are passed on."""


def load_tokenizer(path: str) -> "MlxTokenizer":
    """The tokenizer of the model folder ``path``; takes up to seconds, for a thread.

    Evaluates no MLX array. Raises ``ModelBroken`` naming the file at fault, ``ModelLoadFailed``
    where a package that it needs is not installed, ``ModelAway``.
    """
    files = read_tokenizer_files(Path(path))
    # Imported here: it takes seconds and belongs on the thread that loads.
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
        # tokenizers raises plain Exception for a damaged file, transformers nearly anything.
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
            # The template is a program that came with the model and may raise anything.
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
        """Some templates only walk a list of parts: with a string they lose the content."""
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
    """The template's own words for its own errors, with the kind for Python's."""
    text = str(error)[:_LONGEST_REASON]
    own = type(error).__module__.startswith("jinja2") and text
    return text if own else f"{type(error).__name__}: {text}"
