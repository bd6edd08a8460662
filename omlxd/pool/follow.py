"""Makes the records follow what is on disk, new, replaced and vanished, and what is wished."""

from collections.abc import Collection

import structlog

from omlxd.errors import ModelNotFound
from omlxd.library.catalog import Catalog, CatalogModel
from omlxd.model_settings.options import ModelSettings
from omlxd.model_settings.settings import ModelSettingsStore
from omlxd.pool.entry import Ready
from omlxd.pool.record import ModelRecord
from omlxd.pool.residency import Residency

log = structlog.get_logger(__name__)


def follow(residency: Residency, catalog: Catalog, book: ModelSettingsStore) -> None:
    """Marks the records; ``Residency.advance`` then drains what must leave memory."""
    for model in catalog.models.values():
        record = residency.records.get(model.id)
        if record is None:
            residency.add(model, book.of(model.id))
            continue
        if record.gone:
            record.gone, record.preload = False, record.pinned
        _follow_one(residency, record, model)
    for record in list(residency.records.values()):
        if record.id not in catalog.models:
            _vanished(residency, record)


def follow_change(
    residency: Residency, model_id: str, settings: ModelSettings, changed: Collection[str]
) -> None:
    """``changed`` keys of the ``settings`` of a model, which may be broken or gone, take hold."""
    record = residency.records.get(model_id)
    if record is not None:
        record.settings = settings
        if "pinned" in changed:
            away = not isinstance(record.state, Ready)
            record.preload = record.pinned and away and not record.gone
    residency.advance()


def _follow_one(residency: Residency, record: ModelRecord, model: CatalogModel) -> None:
    if model.fingerprint == record.model.fingerprint and model.path == record.model.path:
        record.replacement = None
        residency.leases.fail_replaced(record)
        return
    if record.replacement is not None and record.replacement.fingerprint == model.fingerprint:
        return
    log.info("model_replaced_on_disk", model=record.id)
    record.replacement = model
    residency.leases.fail_replaced(record)
    residency.cancel_load(record)


def _vanished(residency: Residency, record: ModelRecord) -> None:
    if record.gone:
        return
    log.info("model_vanished", model=record.id)
    record.gone, record.preload, record.replacement = True, False, None
    residency.fail_waiting(record, ModelNotFound(record.id))
    residency.cancel_load(record)
