"""What the text side needs of a tokenizer. ``backend/mlx`` has the class that fits."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

Joining = Literal["bytes", "bytes_less_space", "context"]
"""How to make the text of several tokens. ``bytes``: join their bytes and read them as UTF-8
(byte-level BPE). ``bytes_less_space``: the same, without one space where a text begins
(sentencepiece). ``context``: only ``decode`` of all tokens knows. They are strings, so that a class
fits without importing them."""


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
        """What one token stands for, perhaps a part of a character; a special token's name.

        Empty for an id that the tokenizer does not know. Where ``joining`` is context, the
        bytes of its text alone.
        """

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_arguments: Mapping[str, Any],
        check: Callable[[int], None],
    ) -> str:
        """The prompt text for ``messages``, with the generation prompt, in the sandbox.

        ``content`` of every message is a string, whatever shape the template wants. Blocks as
        long as the template runs. ``check`` is called again and again with the number of characters
        so far; it ends the template by raising ``errors.TemplateFailed``. Raises that too with the
        template's own message, ``errors.NoChatTemplate`` where there is none, and
        ``errors.ModelBroken`` where it is no template.
        """
