"""Routes about the models: listing, settings, fit, load, unload, rescan.

Ids may have a slash, so the routes split a path after the id themselves.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request

from omlxd.api.connection import while_connected
from omlxd.api.json_object import field_schemas, json_body, read_object
from omlxd.api.services import Services
from omlxd.errors import InvalidRequest
from omlxd.library.catalog import Catalog, CatalogModel, ModelKind
from omlxd.model_settings.options import ModelSettings
from omlxd.pool.admission import Fit
from omlxd.pool.status import ModelStatus

MOST_TOKENS: Final = 100_000_000
MOST_REQUESTS: Final = 10_000

_WORKING: Final = frozenset({"ready", "draining"})
_LISTED_TYPES: Final[Mapping[ModelKind, str]] = {
    ModelKind.LANGUAGE: "llm",
    ModelKind.VISION_LANGUAGE: "vlm",
    ModelKind.EMBEDDING: "embeddings",
}
_FIT: Final = "/fit"

Context = Annotated[int | None, Query(ge=1, le=MOST_TOKENS)]
Concurrency = Annotated[int, Query(ge=1, le=MOST_REQUESTS)]


def model_routes(services: Services) -> APIRouter:
    routes = APIRouter(tags=["models"])
    library, pool = services.library, services.pool

    @routes.get("/v1/models")
    @routes.head("/v1/models", include_in_schema=False)
    async def models() -> dict[str, Any]:
        services.refuse_until_scanned()
        statuses = {status.id: status for status in pool.statuses()}
        data = [_listed(model, statuses.get(model.id)) for model in library.catalog.models.values()]
        return {"object": "list", "data": data}

    @routes.get("/v1/models/{name:path}")
    @routes.head("/v1/models/{name:path}", include_in_schema=False)
    async def one_model(
        name: str, context: Context = None, concurrency: Concurrency = 1
    ) -> dict[str, Any]:
        """The model. With ``/fit`` after its id: whether it would fit."""
        if name.endswith(_FIT) and name not in library.catalog.models:
            return _fit(services, name.removesuffix(_FIT), context, concurrency)
        return _shown(services, name)

    settings = {"default": {"type": ["boolean", "null"]}, **field_schemas(ModelSettings)}

    @routes.patch("/v1/models/{name:path}", openapi_extra=json_body(settings))
    async def change(name: str, request: Request) -> dict[str, Any]:
        """Change settings of a model; null resets one to the configuration's.

        Also for a model that is broken or gone: then only its settings are shown.
        """
        model_id = library.settings_id(name)
        await pool.change_settings(model_id, read_object(await request.body()))
        if model_id in library.catalog.models:
            return _shown(services, model_id)
        return {"id": model_id, "object": "model", "settings": _settings(services, model_id)}

    @routes.post("/v1/models/rescan")
    async def rescan(request: Request) -> dict[str, Any]:
        """Answers when all roots were read, or their time has run out."""
        services.refuse_unless_ready()
        return _scanned(await while_connected(request.receive, pool.rescan()))

    @routes.post("/v1/models/{name:path}/load")
    async def load(name: str, request: Request) -> dict[str, Any]:
        """Answers when it is loaded. The load ends if the client leaves and no other waits."""
        services.refuse_unless_ready()
        model = library.resolve(name)
        info = await while_connected(request.receive, pool.load(model.id))
        return {"id": model.id, "state": "ready", "weights_bytes": info.weights_bytes}

    @routes.post("/v1/models/{name:path}/unload")
    async def unload(name: str) -> dict[str, Any]:
        """Answers when it is out of memory, after its running requests have ended.

        It is unloaded even if the client leaves.
        """
        model = library.resolve(name)
        return {"id": model.id, "freed_bytes": await pool.unload(model.id)}

    return routes


def _shown(services: Services, name: str) -> dict[str, Any]:
    """The model object with the settings that are set, and where each was set."""
    model = services.library.resolve(name)
    status = next((status for status in services.pool.statuses() if status.id == model.id), None)
    return {
        **_listed(model, status),
        "default": status is not None and status.default,
        "settings": _settings(services, model.id),
    }


def _settings(services: Services, model_id: str) -> dict[str, Any]:
    values = asdict(services.library.settings.of(model_id))
    origins = services.library.settings.origin(model_id)
    return {key: {"value": values[key], "origin": origin} for key, origin in origins.items()}


def _fit(services: Services, name: str, context: int | None, concurrency: int) -> dict[str, Any]:
    library = services.library
    model = library.resolve(name)
    context = context if context is not None else library.context_length(model.id)
    if context is None:
        raise InvalidRequest(
            f"The config of '{model.id}' does not say how long its context is: name one.",
            param="context",
        )
    return fit_body(services.pool.fit(model.id, context=context, concurrency=concurrency))


def fit_body(fit: Fit) -> dict[str, Any]:
    """What is not known is null; so is the total when one of its parts is not known."""
    parts = (fit.weights_bytes, fit.kv_bytes, fit.prefill_bytes)
    known = [part for part in parts if part is not None]
    return {
        "id": fit.model_id,
        "context": fit.context,
        "concurrency": fit.concurrency,
        "loaded": fit.loaded,
        "weights_bytes": fit.weights_bytes,
        "weights_measured": fit.weights_measured,
        "kv_bytes": fit.kv_bytes,
        "prefill_bytes": fit.prefill_bytes,
        "total_bytes": sum(known) if len(known) == len(parts) else None,
        "needed_bytes": fit.needed_bytes,
        "unknown": fit.unknown,
        "tier": None if fit.tier is None else fit.tier.value,
        "tiers": {
            tier.value: {**asdict(found), "verdict": found.verdict.value}
            for tier, found in fit.tiers.items()
        },
    }


def _scanned(catalog: Catalog) -> dict[str, Any]:
    return {
        "models": sorted(catalog.models),
        "broken": [asdict(broken) for broken in catalog.broken.values()],
        "roots": [
            {"path": root.path, "state": root.state.value, "detail": root.detail}
            for root in catalog.roots
        ],
    }


def _listed(model: CatalogModel, status: ModelStatus | None) -> dict[str, Any]:
    """OpenAI's model object, with further keys that other clients read."""
    state = status.state if status else "absent"
    context = status.context_length if status else model.context_length
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.id.rpartition("/")[0] or "local",
        "type": _LISTED_TYPES.get(model.kind, model.kind.value),
        "architecture": model.model_type,
        "quantization": model.quantization,
        "context_length": context,
        "max_context_length": model.context_length,
        "state": state,
        "loaded": state in _WORKING,
        "size_bytes": model.weights_bytes,
    }
