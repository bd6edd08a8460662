"""Routes about the server itself: health, readiness, status, version.

None of them waits for anything or touches a model.
"""

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from omlxd.api.json_object import flat
from omlxd.api.openai.unsupported import IGNORED, REFUSED
from omlxd.api.services import Services
from omlxd.engine.generation import RequestView
from omlxd.pool.status import ModelStatus

_PARAMETERS = {"ignored": sorted(IGNORED), "refused": sorted(REFUSED)}


def control_routes(services: Services) -> APIRouter:
    routes = APIRouter(tags=["control"])
    identity = services.identity

    @routes.get("/health")
    @routes.head("/health", include_in_schema=False)
    async def health() -> dict[str, Any]:
        """The daemon is alive. It answers at once, even when it is busy."""
        return {
            "status": services.phase().value,
            "version": identity.version,
            "instance_id": identity.instance_id,
            "uptime": round(identity.uptime, 3),
        }

    @routes.get("/ready")
    @routes.head("/ready", include_in_schema=False)
    async def ready() -> dict[str, Any]:
        """200 once requests are served; models may still be preloading."""
        services.refuse_unless_ready()
        services.refuse_until_scanned()
        return {"status": "ready", "preloading": list(services.pool.preloading)}

    @routes.get("/status")
    @routes.head("/status", include_in_schema=False)
    async def status() -> Response:
        guard = services.guard_status() if services.guard_status is not None else {}
        return JSONResponse({**guard, **_status(services)})

    @routes.get("/v1/version")
    @routes.head("/v1/version", include_in_schema=False)
    async def version() -> dict[str, str]:
        return {"version": identity.version}

    return routes


def _status(services: Services) -> dict[str, Any]:
    identity, catalog = services.identity, services.library.catalog
    served = services.requests.served
    return {
        "server": {
            "status": services.phase().value,
            "version": identity.version,
            "instance_id": identity.instance_id,
            "host": identity.host,
            "port": identity.port,
            "uptime": round(identity.uptime, 3),
            "prompt_tokens": served.prompt,
            "completion_tokens": served.completion,
            "preloading": list(services.pool.preloading),
            "default_model": services.library.settings.default,
            "troubles": list(services.pool.troubles),
            "model_roots": [
                {"path": root.path, "state": root.state.value, "detail": root.detail}
                for root in catalog.roots
            ],
            "skipped": [flat(skipped) for skipped in catalog.skipped],
        },
        "models": [_model_status(status) for status in services.pool.statuses()],
        "requests": [_request_status(view) for view in services.requests.views()],
        "parameters": _PARAMETERS,
    }


def _model_status(status: ModelStatus) -> dict[str, Any]:
    total = status.total_bytes
    progress = (status.loaded_bytes or 0) / total if total else None
    kind = status.kind.value if status.kind else None
    problem = None if status.problem is None else flat(status.problem)
    return {**flat(status), "kind": kind, "problem": problem, "progress": progress}


def _request_status(view: RequestView) -> dict[str, Any]:
    return {**flat(view), "phase": view.phase.value, "age": round(view.age, 3)}
