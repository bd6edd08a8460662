"""What is wished for models and cannot be meant so: told once, when the models are known."""

from collections.abc import Iterable

import structlog

from omlxd.errors import AmbiguousModel, ModelNotFound
from omlxd.library import names
from omlxd.library.catalog import Catalog
from omlxd.model_settings.settings import ModelSettingsStore
from omlxd.printable import printable

log = structlog.get_logger(__name__)

Doubt = tuple[str, tuple[tuple[str, object], ...]]
"""A log event and its fields."""


class ConfigWarnings:
    """Those that were told already."""

    def __init__(self) -> None:
        self._told: set[Doubt] = set()

    def tell(self, catalog: Catalog, book: ModelSettingsStore) -> None:
        found = set(doubts(catalog, book))
        for event, fields in sorted(found - self._told, key=str):
            log.warning(event, **dict(fields))
        self._told = found


def doubts(catalog: Catalog, book: ModelSettingsStore) -> Iterable[Doubt]:
    """Settings and a default of no model, and aliases that lead to several or to another one."""
    known = {*catalog.models, *catalog.broken}
    aliases = book.aliases(sorted(known))
    for model_id in book.configured - known:
        meant, _ = _meaning(model_id, known, {})
        yield "settings_of_no_model", (("model", printable(model_id)), ("meant", meant))
    for alias, models in aliases.items():
        if alias in known and models != (alias,):
            yield "alias_is_a_model", (("alias", alias), ("models", models))
        elif len(models) > 1:
            yield "alias_of_several_models", (("alias", alias), ("models", models))
    if book.default is not None:
        found, reason = _meaning(book.default, known, aliases)
        if found is None:
            yield "default_is_no_model", (("default", printable(book.default)), ("reason", reason))


def _meaning(
    name: str, known: set[str], aliases: dict[str, tuple[str, ...]]
) -> tuple[str | None, str]:
    """The model that a request by ``name`` gets, or none and why."""
    try:
        return names.find(name, known, aliases), ""
    except (AmbiguousModel, ModelNotFound) as error:
        return None, printable(error.message)
