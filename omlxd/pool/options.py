"""Options of the engine pool, and of the folders that its models come from."""

from collections.abc import Mapping
from dataclasses import dataclass

from omlxd.model_settings.options import ModelSettings
from omlxd.options import FilePath, Seconds, option


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
