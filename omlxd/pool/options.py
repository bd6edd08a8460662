"""Options of models: where they are, how long they stay, what each of them defaults to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omlxd.options import FilePath, Seconds, option
from omlxd.printable import is_printable

LONGEST_ALIAS = 200


def check_aliases(aliases: Sequence[str] | None) -> None:
    """Raises ValueError for what would not be read as a name."""
    for alias in aliases or ():
        if not alias.strip() or not is_printable(alias) or len(alias) > LONGEST_ALIAS:
            raise ValueError(
                f"{alias[:50]!a} is no name of 1 to {LONGEST_ALIAS} printable characters"
            )


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Wishes for one model; ``None`` is "no wish", so the general rule applies."""

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
        """The effective length: the model's own, or less where so wished; None where unknown."""
        return min((n for n in (own, self.context_length) if n is not None), default=None)


@dataclass(frozen=True, slots=True)
class PoolOptions:
    dirs: tuple[FilePath, ...] | None = option(
        None, "Folders with models beside models/ in the data folder; none: Hugging Face's cache."
    )
    default: str | None = option(
        None, "Model of requests that name none; none: the only model, if there is one."
    )
    idle_timeout: Seconds | None = option(
        None, "Unload a model that was not used for this long; none: never.", above=0
    )
    queue_deadline: Seconds = option(
        300.0, "Longest wait of a request for its model to be loaded.", above=0
    )
    drain_after: Seconds = option(
        30.0, "A model in use makes room for a waiting one after this long.", low=0
    )
    drain_deadline: Seconds = option(
        60.0, "An unload that was asked for waits this long for running requests.", low=0
    )
    settle_limit: Seconds = option(
        5.0, "Longest wait for freed memory to show before the next load.", low=0
    )
    retry_first: Seconds = option(
        10.0, "Pause after a failed load; doubles with each further failure.", above=0
    )
    retry_longest: Seconds = option(600.0, "Longest pause after a failed load.", above=0)
    tokenizer_limit: Seconds = option(
        60.0, "A tokenizer that takes longer to read is reported and not waited for.", above=0
    )
    scan_limit: Seconds = option(
        10.0, "A model folder that takes longer to read is reported and not waited for.", above=0
    )
    scan_every: Seconds | None = option(
        60.0, "How often the folders are read again; none: only on request.", above=0
    )
    settings: Mapping[str, ModelSettings] | None = option(
        None, 'Settings of single models, such as [models.settings."org/name"].'
    )
