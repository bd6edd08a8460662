"""What the text side needs of a model's tokenizer; ``backend/mlx`` implements it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

Joining = Literal["bytes", "bytes_less_space", "context"]
"""How tokens become text. ``bytes``: join their bytes and read them as UTF-8 (byte-level BPE).
``bytes_less_space``: the same without one space at the start of a text (sentencepiece).
``context``: only ``decode`` of all tokens gives it. Strings need no import in other classes."""


class Tokenizer(Protocol):
    """A tokenizer with its chat template. Safe to call from several threads at once."""

    @property
    def vocab_size(self) -> int:
        """Number of ids the tokenizer knows; the model's logits may be wider."""

    @property
    def stop_tokens(self) -> frozenset[int]:
        """The ids that end an answer."""

    @property
    def special_tokens(self) -> frozenset[int]:
        """The ids that are never part of a text."""

    @property
    def has_chat_template(self) -> bool: ...

    @property
    def joining(self) -> Joining: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of ``tokens``; incomplete UTF-8 shows as U+FFFD, unknown ids as nothing."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, which may be a part of a character; a special token's name.

        Empty for an id that the tokenizer does not know. If ``joining`` is "context", the bytes
        of the token's text when it is decoded alone.
        """

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_arguments: Mapping[str, Any],
        check: Callable[[int], None],
    ) -> str:
        """The prompt text for ``messages``, with the generation prompt, in the sandbox.

        ``content`` of every message is a string, even if the template wants another form. Blocks
        while the template runs. ``check`` is called with the number of characters so far, and
        ends the render by raising ``errors.TemplateFailed``. The template's own errors raise it
        too, with their message. Raises ``errors.NoChatTemplate`` without a template, and
        ``errors.ModelBroken`` for an invalid one.
        """
