"""The settings of each model: from the configuration, changed by those set over the API."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

import structlog

from omlxd.errors import InvalidRequest
from omlxd.model_settings.options import ModelSettings
from omlxd.options import BadValue, Declaration, declarations, read_value

log = structlog.get_logger(__name__)

FILE = "models.json"
"""In the state folder: what ``ModelSettingsStore.to_json`` gives."""
NO_SETTINGS = ModelSettings()
KEYS = tuple(field.name for field in fields(ModelSettings))
LARGEST_NUMBER: Final = 2**53
"""Above it the numbers of JSON are no longer exact."""
_DECLARED: Final = {"default": Declaration(bool), **declarations(ModelSettings)}


def check_change(key: str, value: Any) -> Any:
    """``value`` as in ``ModelSettings``; None resets. Raises InvalidRequest for ``key``."""
    if key not in _DECLARED:
        raise InvalidRequest(
            f"There is no setting '{key}'. Known are default, "
            f"{', '.join(sorted(_DECLARED.keys() - {'default'}))}.",
            param=key,
        )
    if value is None:
        return None
    try:
        result = read_value(value, _DECLARED[key])
        if isinstance(result, int | float) and not -LARGEST_NUMBER <= result <= LARGEST_NUMBER:
            raise BadValue("must be a smaller number")
    except BadValue as bad:
        raise InvalidRequest(f"'{key}' {bad.rule}.", param=key) from None
    return tuple(dict.fromkeys(result)) if isinstance(result, tuple) else result


class ModelSettingsStore:
    """Owned by the pool. ``to_json`` gives what must survive a restart; ``restore`` reads it."""

    def __init__(
        self, configured: Mapping[str, ModelSettings] | None = None, default: str | None = None
    ) -> None:
        """``configured``: settings by model id; ``default``: the default model's name."""
        self._configured = dict(configured or {})
        self._configured_default = default
        self._changed: dict[str, dict[str, Any]] = {}
        self._default: str | None = None

    @property
    def default(self) -> str | None:
        """Name of the default model."""
        return self._default if self._default is not None else self._configured_default

    @property
    def configured(self) -> set[str]:
        """Models with settings in the configuration."""
        return set(self._configured)

    @property
    def ids(self) -> set[str]:
        """Models that have settings, whether they exist or not."""
        return {*self._configured, *self.remembered}

    @property
    def remembered(self) -> set[str]:
        """Models with settings from the API. They existed when these were set."""
        chosen = () if self._default is None else (self._default,)
        return {*self._changed, *chosen}

    def of(self, model_id: str) -> ModelSettings:
        configured = self._configured.get(model_id, NO_SETTINGS)
        changes = self._changed.get(model_id)
        return replace(configured, **changes) if changes else configured

    def origin(self, model_id: str) -> dict[str, str]:
        """Where each setting that is set comes from: ``api`` or ``file``."""
        changed = self._changed.get(model_id, {})
        settings = self.of(model_id)
        return {
            key: "api" if key in changed else "file"
            for key in KEYS
            if getattr(settings, key) is not None
        }

    def change(self, model_id: str, changes: Mapping[str, Any], ids: Iterable[str]) -> None:
        """Set some keys of a model; ``None`` resets a key to its configured value.

        ``default`` true makes it the default model, false ends that. If one change is wrong, none
        is made. ``ids`` are the models on disk. Raises InvalidRequest that names the wrong key.
        """
        checked = {key: check_change(key, value) for key, value in changes.items()}
        self._check_aliases(model_id, checked.get("aliases") or (), ids)
        default = checked.pop("default", False)
        kept = {**self._changed.get(model_id, {}), **checked}
        kept = {key: value for key, value in kept.items() if value is not None}
        if kept:
            self._changed[model_id] = kept
        else:
            self._changed.pop(model_id, None)
        if default:
            self._default = model_id
        elif "default" in changes and self._default == model_id:
            self._default = None

    def aliases(self, ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The ids behind each alias."""
        table: dict[str, tuple[str, ...]] = {}
        for model_id in ids:
            for alias in self.of(model_id).aliases or ():
                table[alias] = (*table.get(alias, ()), model_id)
        return table

    def to_json(self) -> dict[str, Any]:
        """A copy, because another thread writes it."""
        models = {model_id: dict(changes) for model_id, changes in self._changed.items()}
        return {"default": self._default, "models": models}

    def restore(self, stored: Any) -> None:
        """Leave out and report entries that are not valid any more."""
        if not isinstance(stored, Mapping):
            return
        default, models = stored.get("default"), stored.get("models")
        self._default = default if isinstance(default, str) else None
        if not isinstance(models, Mapping):
            return
        for model_id, changes in models.items():
            if isinstance(changes, Mapping):
                self._restore_model(str(model_id), changes)

    def _restore_model(self, model_id: str, changes: Mapping[str, Any]) -> None:
        kept = {}
        for key, value in changes.items():
            try:
                kept[key] = check_change(key, value)
            except InvalidRequest as error:
                log.warning("setting_dropped", model=model_id, key=key, reason=error.message)
        kept.pop("default", None)
        kept = {key: value for key, value in kept.items() if value is not None}
        if kept:
            self._changed[model_id] = kept

    def _check_aliases(self, model_id: str, wanted: Iterable[str], ids: Iterable[str]) -> None:
        # Deleted models count too: their aliases must not be ambiguous when the models come back.
        known = {*ids, *self.ids}
        taken = {a: m for a, m in self.aliases(known).items() if m != (model_id,)}
        for alias in wanted:
            if alias in known and alias != model_id:
                reason = f"'{alias}' is the name of another model."
            elif alias in taken:
                reason = f"'{alias}' is already an alias of {', '.join(taken[alias])}."
            else:
                continue
            raise InvalidRequest(reason, param="aliases")


def without_model(stored: Any, model_id: str) -> Any:
    """An output of ``to_json`` without the settings of a model; the case of its name is ignored."""
    gone = model_id.casefold()
    match stored:
        case {"default": default, "models": dict(models)}:
            kept = {known: of for known, of in models.items() if known.casefold() != gone}
            was_default = isinstance(default, str) and default.casefold() == gone
            return {"default": None if was_default else default, "models": kept}
        case _:
            return stored
