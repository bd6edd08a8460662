"""Reads each request's body once, within a limit, before the application sees the request."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlxd.api.connection import ClientGone
from omlxd.errors import BodyTooLarge, InvalidRequest
from omlxd.units import format_bytes


class BodyLimit:
    """ASGI: refuses bodies above ``limit`` bytes, announced or not, with BodyTooLarge."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        for name, value in scope["headers"]:
            if name == b"content-length" and _length(value) > self._limit:
                raise self._too_large()
        body: Message | None = await self._read(receive)

        async def replay() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            message, body = body, None
            return message

        await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> Message:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limit:
                raise self._too_large()
            if not message.get("more_body", False):
                return {"type": "http.request", "body": b"".join(parts), "more_body": False}

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"The request body is larger than {format_bytes(self._limit)} (api.max_body).",
            limit_bytes=self._limit,
        )


def _length(value: bytes) -> int:
    try:
        return int(value)
    except ValueError:
        raise InvalidRequest("The Content-Length header is not a number.") from None
