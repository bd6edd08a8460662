"""What the text side needs of a model's tokenizer; ``backend/mlx`` has the class that fits."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """A tokenizer with its chat template. Safe to call from several threads at once."""

    @property
    def vocab_size(self) -> int:
        """Number of ids the tokenizer knows; the model's logits may be wider."""

    @property
    def stop_tokens(self) -> frozenset[int]:
        """The ids that end an answer."""

    @property
    def has_chat_template(self) -> bool: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of ``tokens``; incomplete UTF-8 shows as U+FFFD."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_arguments: Mapping[str, Any],
    ) -> str:
        """The prompt text for ``messages``, with the generation prompt, in the sandbox.

        Blocks for as long as the template runs. Raises ``errors.TemplateFailed`` with the
        template's own message, ``errors.NoChatTemplate`` where there is none.
        """
