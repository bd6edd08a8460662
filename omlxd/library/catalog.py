"""What is on disk: the models, the broken ones and the folders they come from."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any


class ModelKind(Enum):
    """What a model is for, according to its files."""

    LANGUAGE = "language"
    VISION_LANGUAGE = "vision-language"
    EMBEDDING = "embedding"
    RERANKER = "reranker"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model whose files are complete as far as a scan can tell.

    Attributes:
        path: resolved folder, inside its root. Never shown to clients.
        weights_bytes: exact size of all tensors; vision_bytes: the part of it for vision and
            audio, which a text-only load leaves out.
        context_length: tokens the model was trained for; None when its config does not say.
        element_bytes: bytes of one activation: the size of most of its floating-point weights.
        fingerprint: changes whenever config, tensors or tokenizer files change.
        created: seconds since 1970, when its config was written.
        config: config.json; generation: generation_config.json, empty without one.
    """

    id: str
    path: str
    kind: ModelKind
    model_type: str
    architecture: str | None
    weights_bytes: int
    vision_bytes: int
    context_length: int | None
    quantization: str | None
    fingerprint: str
    created: int
    config: Mapping[str, Any] = field(repr=False)
    generation: Mapping[str, Any] = field(repr=False)
    element_bytes: int = 2


@dataclass(frozen=True, slots=True)
class BrokenModel:
    """A model that cannot be served because of ``file`` (named without its folder)."""

    id: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A folder that is not a model, or a model that is not served.

    ``name`` is relative to ``root``. ``merge`` fills in ``root`` as it was configured."""

    name: str
    reason: str
    root: str = ""


class RootState(Enum):
    SCANNING = "scanning"
    OK = "ok"
    ABSENT = "absent"
    DENIED = "denied"
    HANGING = "hanging"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RootStatus:
    path: str
    state: RootState
    detail: str | None = None
    """What is wrong and what to do about it."""


@dataclass(frozen=True, slots=True)
class RootScan:
    """What one scan of one root has found."""

    status: RootStatus
    models: tuple[CatalogModel, ...] = ()
    broken: tuple[BrokenModel, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    unread: tuple[str, ...] = ()
    """Folders that could not be read, or only in part; their models may still be there."""


def keep_unread(known: RootScan, found: RootScan) -> RootScan:
    """``found``, plus the ``known`` models that could not be read this time.

    A folder that cannot be read does not count as deleted: the error may be temporary, and it
    must not unload a model in use.
    """
    if found.status.state in (RootState.DENIED, RootState.FAILED):
        return replace(known, status=found.status)
    there = {model.id for model in found.models}
    kept = {
        model.id: model
        for model in known.models
        if model.id not in there and any(is_inside(model.path, path) for path in found.unread)
    }
    reasons = [
        Skipped(bad.id, f"{bad.file} {bad.reason}; what was known of it stays")
        for bad in found.broken
        if bad.id in kept
    ]
    return replace(
        found,
        models=(*found.models, *kept.values()),
        broken=tuple(bad for bad in found.broken if bad.id not in kept),
        skipped=(*found.skipped, *reasons),
    )


def is_inside(path: str, root: str) -> bool:
    """Whether ``path`` is ``root`` or inside it; both are resolved."""
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


@dataclass(frozen=True, slots=True)
class Catalog:
    """All roots together. If several have a model of the same id, the first root wins."""

    models: Mapping[str, CatalogModel]
    broken: Mapping[str, BrokenModel]
    skipped: tuple[Skipped, ...]
    roots: tuple[RootStatus, ...]


EMPTY = Catalog(models={}, broken={}, skipped=(), roots=())


def merge(scans: Sequence[RootScan]) -> Catalog:
    """``scans`` in the order of the roots. A good model beats a broken one of the same id."""
    models: dict[str, CatalogModel] = {}
    origin: dict[str, str] = {}
    skipped: list[Skipped] = []
    for scan in scans:
        for model in scan.models:
            if model.id in models:
                reason = f"the one of the same name in {origin[model.id]} is served"
                skipped.append(Skipped(model.id, reason, scan.status.path))
                continue
            models[model.id] = model
            origin[model.id] = scan.status.path
        skipped.extend(replace(item, root=scan.status.path) for item in scan.skipped)
    broken: dict[str, BrokenModel] = {}
    for scan in scans:
        for item in scan.broken:
            if item.id not in models:
                broken.setdefault(item.id, item)
    return Catalog(models, broken, tuple(skipped), tuple(scan.status for scan in scans))
