"""The model that a request means: by name, by alias, or the default."""

from omlxd.errors import InvalidRequest, ModelBroken, ModelNotFound, OmlxdError, Starting
from omlxd.library import names
from omlxd.library.catalog import Catalog, CatalogModel
from omlxd.model_settings.settings import ModelSettingsStore

STILL_READING = "The model folders are being read; try again soon."


def resolve(
    name: str | None, catalog: Catalog, book: ModelSettingsStore, *, scanned: bool
) -> CatalogModel:
    """``scanned``: the catalogue is whole. A name is only ever looked up, never a path.

    Raises ModelNotFound, AmbiguousModel, ModelBroken, InvalidRequest (no default), Starting.
    """
    wanted = name if name is not None else _default(catalog, book, scanned=scanned)
    try:
        found = _on_disk(wanted, catalog, book)
    except ModelNotFound:
        if not scanned:
            raise Starting(STILL_READING) from None
        if name is None:
            raise ModelNotFound(wanted, by_default=True) from None
        raise
    if found in catalog.models:
        return catalog.models[found]
    broken = catalog.broken[found]
    what = "The default model" if name is None else "Model"
    raise ModelBroken(
        f"{what} '{found}' cannot be served: {broken.file} {broken.reason}.",
        file=broken.file,
        reason=broken.reason,
    )


def settings_id(name: str, catalog: Catalog, book: ModelSettingsStore, *, scanned: bool) -> str:
    """The model whose settings ``name`` means: also a broken one, or one that is gone.

    The same as a request by that name means, unless it means another only for want of what is
    gone. What is only configured was perhaps never there: it is meant where nothing else is.
    Raises ModelNotFound, AmbiguousModel, Starting.
    """
    known, remembered = _known(catalog), book.remembered
    order = (
        (known, names.EXACT),
        (remembered, names.EXACT),
        (known, names.CLOSE),
        (remembered, names.CLOSE),
        (known, names.DISTANT),
        (book.ids, names.ALL),
    )
    for ids, rules in order if scanned else order[:3]:
        found = names.match(name, ids, book.aliases(ids), rules)
        if found is not None:
            return found
    if not scanned:
        raise Starting(STILL_READING)
    return _on_disk(name, catalog, book)


def default_id(catalog: Catalog, book: ModelSettingsStore) -> str | None:
    """The model of requests that name none, if there is one."""
    known = _known(catalog)
    try:
        name = _default(catalog, book, scanned=True)
        return names.match(name, known, book.aliases(known))
    except OmlxdError:
        return None


def _on_disk(name: str, catalog: Catalog, book: ModelSettingsStore) -> str:
    known = _known(catalog)
    return names.find(name, known, book.aliases(known))


def _known(catalog: Catalog) -> set[str]:
    return {*catalog.models, *catalog.broken}


def _default(catalog: Catalog, book: ModelSettingsStore, *, scanned: bool) -> str:
    if book.default is not None:
        return book.default
    if not scanned:
        raise Starting(STILL_READING)
    if len(catalog.models) == 1:
        return next(iter(catalog.models))
    raise InvalidRequest(
        "Name a model: there is no default. GET /v1/models lists the models.", param="model"
    )
