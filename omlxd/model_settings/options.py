"""The settings that each model can have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omlxd.options import Seconds, option
from omlxd.printable import is_printable

LONGEST_ALIAS = 200


def check_aliases(aliases: Sequence[str] | None) -> None:
    """Raises ValueError for an alias that cannot be used as a name."""
    for alias in aliases or ():
        if not alias.strip() or not is_printable(alias) or len(alias) > LONGEST_ALIAS:
            raise ValueError(
                f"{alias[:50]!a} is no name of 1 to {LONGEST_ALIAS} printable characters"
            )


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Settings of one model. For ``None`` the general rule applies."""

    aliases: tuple[str, ...] | None = option(
        None, "Other names this model answers to.", check=check_aliases
    )
    pinned: bool | None = option(
        None, "Load it at start, and never unload it for memory or idleness."
    )
    idle_timeout: Seconds | None = option(
        None, "Unload after this long without use; none: the general idle timeout.", above=0
    )
    context_length: int | None = option(
        None, "Longest context in tokens; never above the model's own.", low=1
    )
    max_concurrent_requests: int | None = option(
        None,
        "Requests of this model at a time, others wait, and the prompts of one run in turn; none: "
        "no limit of its own.",
        low=1,
    )
    max_tokens: int | None = option(None, "Answer length where a request sets none.", low=1)
    temperature: float | None = option(
        None, "Temperature where a request sets none.", low=0, high=2
    )
    top_p: float | None = option(None, "top_p where a request sets none.", above=0, high=1)
    top_k: int | None = option(None, "top_k where a request sets none.", low=1)
    min_p: float | None = option(None, "min_p where a request sets none.", low=0, high=1)
    repetition_penalty: float | None = option(
        None, "repetition_penalty where a request sets none.", above=0
    )
    presence_penalty: float | None = option(
        None, "presence_penalty where a request sets none.", low=-2, high=2
    )
    frequency_penalty: float | None = option(
        None, "frequency_penalty where a request sets none.", low=-2, high=2
    )
    template_arguments: Mapping[str, Any] | None = option(
        None, "Arguments of the chat template, such as enable_thinking = false."
    )

    def context_within(self, own: int | None) -> int | None:
        """The effective length: the smaller of ``own`` and the setting; None if unknown."""
        return min((n for n in (own, self.context_length) if n is not None), default=None)
