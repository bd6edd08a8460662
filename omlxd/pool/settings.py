"""What is wished for single models: the configuration, and over it what was set by API."""

from collections.abc import Iterable

from omlxd.pool.options import ModelSettings, PoolOptions

NO_WISHES = ModelSettings()


class SettingsBook:
    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._configured = dict(options.settings or {})

    @property
    def default(self) -> str | None:
        """Name of the default model."""
        return self._options.default

    def of(self, model_id: str) -> ModelSettings:
        return self._configured.get(model_id, NO_WISHES)

    def idle_timeout(self, model_id: str) -> float | None:
        own = self.of(model_id).idle_timeout
        return self._options.idle_timeout if own is None else own

    def aliases(self, ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The ids behind each alias."""
        table: dict[str, tuple[str, ...]] = {}
        for model_id in ids:
            for alias in self.of(model_id).aliases or ():
                table[alias] = (*table.get(alias, ()), model_id)
        return table
