"""The model that a request means: by name, by alias, or the default."""

from omlxd.errors import InvalidRequest, ModelBroken, ModelNotFound, Starting
from omlxd.pool import names
from omlxd.pool.catalog import Catalog, CatalogModel
from omlxd.pool.settings import SettingsBook

STILL_READING = "The model folders are being read; try again soon."


def resolve(
    name: str | None, catalog: Catalog, book: SettingsBook, *, scanned: bool
) -> CatalogModel:
    """``scanned``: the catalogue is whole. A name is only ever looked up, never a path.

    Raises ModelNotFound, AmbiguousModel, ModelBroken, InvalidRequest (no default), Starting.
    """
    wanted = name if name is not None else _default(catalog, book, scanned=scanned)
    known = {**catalog.models, **catalog.broken}
    try:
        found = names.find(wanted, known, book.aliases(known))
    except ModelNotFound:
        if not scanned:
            raise Starting(STILL_READING) from None
        raise
    if found in catalog.models:
        return catalog.models[found]
    broken = catalog.broken[found]
    raise ModelBroken(
        f"Model '{found}' cannot be served: {broken.file} {broken.reason}.",
        file=broken.file,
        reason=broken.reason,
    )


def _default(catalog: Catalog, book: SettingsBook, *, scanned: bool) -> str:
    if book.default is not None:
        return book.default
    if not scanned:
        raise Starting(STILL_READING)
    if len(catalog.models) == 1:
        return next(iter(catalog.models))
    raise InvalidRequest(
        "Name a model: there is no default. GET /v1/models lists the models.", param="model"
    )
