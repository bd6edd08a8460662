"""The HTTP application: every layer and route, made of the services it is given."""

from fastapi import FastAPI

from omlxd.api import errors
from omlxd.api.body import BodyLimit, BodyLimits
from omlxd.api.control import control_routes
from omlxd.api.envelope import Envelope
from omlxd.api.guard import guard_routes
from omlxd.api.keys import KeyCheck
from omlxd.api.models import model_routes
from omlxd.api.openai.chat import chat_routes
from omlxd.api.openai.completions import completion_routes
from omlxd.api.security import CallerCheck, callers
from omlxd.api.services import Services


def create_app(services: Services) -> FastAPI:
    """An ASGI application without state of its own; any number may exist."""
    identity, options = services.identity, services.options
    app = FastAPI(
        title="omlxd",
        version=identity.version,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    errors.install(app)
    app.include_router(chat_routes(services))
    app.include_router(completion_routes(services))
    app.include_router(control_routes(services))
    app.include_router(model_routes(services))
    if services.guard is not None:
        app.include_router(guard_routes(services.guard, options))
    # Each of these wraps what was added before it: the envelope is the outermost.
    app.add_middleware(
        BodyLimit, limits=BodyLimits(options.max_body, options.max_depth, options.body_timeout)
    )
    if services.keys is not None:
        app.add_middleware(KeyCheck, ring=services.keys)
    app.add_middleware(
        CallerCheck,
        callers=callers(
            bound_host=identity.host,
            port=identity.port,
            extra_hosts=options.allowed_hosts,
            origins=options.allowed_origins,
        ),
    )
    app.add_middleware(Envelope)
    return app
