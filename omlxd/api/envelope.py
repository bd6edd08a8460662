"""The outermost layer: gives every answer a request id and a log record, and catches all errors."""

import re
import secrets
import time
from typing import Any, Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlxd.api.connection import ClientGone
from omlxd.api.errors import error_response, internal_error, meaning
from omlxd.errors import OmlxdError

log = structlog.get_logger(__name__)

_ID: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_QUIET: Final = frozenset({"/health", "/ready", "/status"})
_HEADERS: Final = "omlxd.headers"
_REQUEST_ID: Final = "omlxd.request_id"


class Envelope:
    """ASGI: gives every answer an ``x-request-id``, and turns every exception into an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[_REQUEST_ID] = _request_id(scope["headers"])
        scope[_HEADERS] = [(b"x-request-id", scope[_REQUEST_ID].encode())]
        response = _SentResponse(scope, send)
        began = time.monotonic()
        with structlog.contextvars.bound_contextvars(request_id=scope[_REQUEST_ID]):
            try:
                await self._app(scope, receive, response.send)
            except ClientGone:
                response.client_gone = True
            except OmlxdError as error:
                await response.fail(error, receive)
            except Exception:
                log.exception("request_failed", method=scope["method"], path=scope["path"])
                await response.fail(internal_error(scope[_REQUEST_ID]), receive)
            write = log.debug if scope["path"] in _QUIET else log.info
            write(
                "http_request",
                method=scope["method"],
                path=scope["path"][:200],
                status=response.status,
                client_gone=response.client_gone,
                seconds=round(time.monotonic() - began, 4),
            )


class _SentResponse:
    """Sends one response, and knows how much of it has been sent."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self.status: int | None = None
        self.client_gone = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message["headers"], *self._scope[_HEADERS]]}
        await self._send(message)

    async def fail(self, error: OmlxdError, receive: Receive) -> None:
        if meaning(error).status >= 500:
            log.warning("request_refused", code=error.code, message=error.message)
        if self.status is None:
            await error_response(error)(self._scope, receive, self.send)
        else:
            # The status is sent already. A stream has reported its own failure before this.
            log.error("answer_cut", code=error.code)


def request_id(scope: Scope) -> str:
    """The id in this request's ``x-request-id``."""
    found: Any = scope[_REQUEST_ID]
    return str(found)


def add_headers(scope: Scope, *headers: tuple[str, str]) -> None:
    """Add ``headers`` to the answer to this request."""
    if _HEADERS in scope:
        scope[_HEADERS].extend((name.encode(), value.encode()) for name, value in headers)


def _request_id(headers: list[tuple[bytes, bytes]]) -> str:
    for name, value in headers:
        if name == b"x-request-id" and _ID.fullmatch(value):
            return value.decode()
    return f"req-{secrets.token_hex(12)}"
