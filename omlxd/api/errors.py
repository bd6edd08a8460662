"""The one table from errors to HTTP, and the error answers made from it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from omlxd import errors
from omlxd.api.json_object import unreadable


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an error is over HTTP.

    Attributes:
        type: OpenAI's ``error.type``.
        retry: False tells SDKs not to try again by themselves. None: the status and the error's
            ``retry_after`` decide.
    """

    status: int
    type: str
    retry: bool | None = None


_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_INVALID: Final = Meaning(400, "invalid_request_error")
_MISSING: Final = Meaning(404, "invalid_request_error")
_UNAVAILABLE: Final = Meaning(503, "service_unavailable")
_SERVER: Final = Meaning(500, "server_error")
_SERVER_FINAL: Final = Meaning(500, "server_error", retry=False)

TABLE: Final[Mapping[type[errors.OmlxdError], Meaning]] = {
    errors.OmlxdError: _SERVER,
    errors.RequestError: _INVALID,
    errors.InvalidRequest: _INVALID,
    errors.UnsupportedParameter: _INVALID,
    errors.ContextLengthExceeded: _INVALID,
    errors.NoChatTemplate: _INVALID,
    errors.TemplateFailed: _INVALID,
    errors.SettingLocked: Meaning(409, "invalid_request_error"),
    errors.ContextTooLargeForMemory: Meaning(400, "invalid_request_error", retry=False),
    errors.Unauthorized: Meaning(401, "authentication_error"),
    errors.Forbidden: Meaning(403, "permission_error"),
    errors.NotFound: _MISSING,
    errors.ModelNotFound: _MISSING,
    errors.AmbiguousModel: _INVALID,
    errors.BodyTooLarge: Meaning(413, "invalid_request_error"),
    errors.RequestTooSlow: Meaning(408, "invalid_request_error"),
    errors.UnsupportedMediaType: Meaning(415, "invalid_request_error"),
    errors.MethodNotAllowed: Meaning(405, "invalid_request_error"),
    errors.Unavailable: _UNAVAILABLE,
    errors.Starting: _UNAVAILABLE,
    errors.ShuttingDown: _UNAVAILABLE,
    errors.QueueFull: _UNAVAILABLE,
    errors.TemplatesBusy: _UNAVAILABLE,
    errors.RequestTimeout: _UNAVAILABLE,
    errors.MemoryPressure: _UNAVAILABLE,
    errors.MemoryPressureAborted: _UNAVAILABLE,
    errors.ModelUnloading: _UNAVAILABLE,
    errors.ModelAway: _UNAVAILABLE,
    errors.ModelLoadCancelled: _UNAVAILABLE,
    errors.ModelTooLarge: Meaning(507, "insufficient_memory", retry=False),
    errors.InsufficientMemory: Meaning(507, "insufficient_memory"),
    # Trying again does not help: the files stay broken, and a failed load is not tried again soon.
    errors.ModelBroken: _SERVER_FINAL,
    errors.ModelLoadFailed: _SERVER_FINAL,
    errors.GenerationFailed: _SERVER,
    errors.EngineDied: Meaning(503, "server_error"),
    # These happen when the process starts, not in an answer.
    errors.ConfigError: _SERVER_FINAL,
    errors.PortTaken: _SERVER_FINAL,
    errors.AlreadyRunning: _SERVER_FINAL,
    errors.StateUnreadable: _SERVER_FINAL,
    errors.StateUnwritable: _SERVER_FINAL,
    errors.ServiceFailed: _SERVER_FINAL,
}


def meaning(error: errors.OmlxdError) -> Meaning:
    for kind in type(error).__mro__:
        found = TABLE.get(kind)
        if found is not None:
            return found
    return _SERVER


def error_object(error: errors.OmlxdError) -> dict[str, Any]:
    """The value of ``error`` in OpenAI's error body: its four keys, and the error's details."""
    return {
        **error.details,
        "message": error.message,
        "type": meaning(error).type,
        "param": error.param,
        "code": error.code,
    }


def error_body(error: errors.OmlxdError, head: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """``head``: further keys beside ``error``."""
    text = json.dumps({**head, "error": error_object(error)}, ensure_ascii=False, default=str)
    return text.encode("utf-8", "replace")  # a client's name may have a lone surrogate


def error_headers(error: errors.OmlxdError) -> dict[str, str]:
    """``retry-after`` in whole seconds, and ``x-should-retry`` where the status is not enough."""
    headers: dict[str, str] = {}
    if isinstance(error, errors.Unauthorized):
        headers["www-authenticate"] = "Bearer"
    retry = meaning(error).retry
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
        retry = True if retry is None else retry
    elif isinstance(error, errors.InsufficientMemory):
        retry = False
    if retry is not None:
        headers["x-should-retry"] = "true" if retry else "false"
    return headers


def error_response(error: errors.OmlxdError, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        error_body(error),
        status_code=meaning(error).status,
        media_type="application/json",
        headers={**error_headers(error), **(headers or {})},
    )


def internal_error(request_id: str) -> errors.OmlxdError:
    """What a client is told of a bug of ours: where the log has it, and nothing more."""
    return errors.OmlxdError(
        f"The server failed on this request. Its log has the cause under '{request_id}'.",
        request_id=request_id,
    )


def install(app: FastAPI) -> None:
    """Give the errors of the framework OpenAI's shape."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            return _method_refused(request)
        return error_response(_from_http(request, error), error.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(from_validation(error.errors()))

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)


def _from_http(request: Request, error: HTTPException) -> errors.OmlxdError:
    path = request.url.path
    if error.status_code == 404:
        hint = ""
        if path.startswith("/v1/v1/"):
            hint = " The path has /v1 twice: give the client a base URL without /v1, or drop one."
        elif allowed_methods({**request.scope, "path": f"/v1{path}"}):
            hint = f" Perhaps /v1{path} is meant: give the client a base URL that ends in /v1."
        return nothing_at(request.method, path, hint)
    return unreadable(error.__cause__)


def _method_refused(request: Request) -> Response:
    allowed = ", ".join(allowed_methods(request.scope))
    refused = errors.MethodNotAllowed(f"{request.url.path} answers {allowed} only.")
    return error_response(refused, {"allow": allowed})


def allowed_methods(scope: Scope) -> tuple[str, ...]:
    """The methods of a path, as the header ``Allow`` has them; none when the path does not exist.

    The framework knows the methods of each route, but a path may have several routes.
    """
    routes = scope["app"].routes
    known = tuple(
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    )
    return (*known, "OPTIONS") if known else ()


def nothing_at(method: str, path: str, hint: str = "") -> errors.NotFound:
    return errors.NotFound(f"There is nothing at {method} {path}.{hint}")


_REMEDIES: Final[Mapping[str, str]] = {
    "dict_type": "It must be a JSON object.",
    "model_attributes_type": "It must be a JSON object.",
    "missing": "The field is required; add it.",
    "string_unicode": "The text holds half of a surrogate pair; send valid Unicode.",
}


def from_validation(mistakes: Sequence[Mapping[str, Any]]) -> errors.InvalidRequest:
    """One error for pydantic's list: the first mistake in full, and how many more there are."""
    first = mistakes[0]
    kind = first["type"]
    if kind == "json_invalid":
        detail = first.get("ctx", {}).get("error", "")
        position = first["loc"][-1] if first["loc"] else "?"
        return errors.InvalidRequest(
            f"The body is not valid JSON: {detail} at character {position}."
        )
    param = field_name(first["loc"])
    if param is None and kind in ("missing", "model_attributes_type", "dict_type"):
        return errors.InvalidRequest("The body must be a JSON object.")
    # The messages of our validators are complete; pydantic puts "Value error" before them.
    message = _REMEDIES.get(kind) or str(first["msg"]).removeprefix("Value error, ")
    message = message if message.endswith(".") else f"{message}{_got(first)}."
    more = f" ({len(mistakes) - 1} more to correct after it.)" if len(mistakes) > 1 else ""
    return errors.InvalidRequest(f"{param or 'body'}: {message}{more}", param=param)


def field_name(location: Sequence[str | int]) -> str | None:
    """``messages[0].content`` from pydantic's ``("body", "messages", 0, "content")``.

    Tags of a union (in angle brackets) and pydantic's mark for a key are left out.
    """
    name = ""
    for part in location[1:]:
        if isinstance(part, int):
            name += f"[{part}]"
        elif not part.startswith("<") and part != "[key]":
            shown = part[:64]
            name += f".{shown}" if name else shown
    return name or None


def _got(mistake: Mapping[str, Any]) -> str:
    value = mistake.get("input")
    short = value is None or isinstance(value, bool | int | float | str)
    return (
        f", not {text}"
        if short and len(text := json.dumps(value, ensure_ascii=False)) <= 42
        else ""
    )
