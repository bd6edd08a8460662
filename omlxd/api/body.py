"""Reads each request's body once, within limits, before the application sees the request."""

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlxd.api.connection import ClientGone
from omlxd.api.inflate import ENCODINGS, IDENTITY, TooLarge, inflate
from omlxd.api.json_depth import deeper_than
from omlxd.api.security import header_values
from omlxd.errors import BodyTooLarge, InvalidRequest, RequestTooSlow, UnsupportedMediaType
from omlxd.units import MiB, format_bytes

SHORT = MiB
"""Bytes; a body of up to this size is looked at on the loop."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Attributes:
    size: bytes, as sent and once more as inflated.
    depth: of JSON.
    seconds: from the head of the request to the end of its body.
    """

    size: int
    depth: int
    seconds: float


class BodyLimit:
    """ASGI: hands on whole, inflated bodies within ``limits``.

    Raises BodyTooLarge (announced or not, sent or inflated), InvalidRequest for one that is
    nested too deeply or not in its encoding, RequestTooSlow.
    """

    def __init__(self, app: ASGIApp, limits: BodyLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        for length in header_values(headers, b"content-length"):
            if _length(length) > self._limits.size:
                raise self._too_large()
        encoding = _encoding(headers)
        sent = await self._read(receive)
        if len(sent) < SHORT and encoding == IDENTITY:
            data = self._open(sent, encoding)
        else:
            data = await asyncio.to_thread(self._open, sent, encoding)
        if encoding != IDENTITY:
            scope = {**scope, "headers": _plain(headers, len(data))}
        body: Message | None = {"type": "http.request", "body": data, "more_body": False}

        async def replay() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            message, body = body, None
            return message

        await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self._limits.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._limits.size:
                        raise self._too_large()
                    more = message.get("more_body", False)
        except TimeoutError:
            raise RequestTooSlow(
                f"The request's body was not complete after {self._limits.seconds:.0f} s "
                "(api.body_timeout)."
            ) from None
        return b"".join(parts)

    def _open(self, sent: bytes, encoding: str) -> bytes:
        try:
            data = inflate(sent, encoding, self._limits.size)
        except TooLarge:
            raise self._too_large() from None
        if deeper_than(data, self._limits.depth):
            raise InvalidRequest(f"The body is nested more than {self._limits.depth} levels deep.")
        return data

    def _too_large(self) -> BodyTooLarge:
        size = self._limits.size
        return BodyTooLarge(
            f"The request body is larger than {format_bytes(size)} (api.max_body).",
            limit_bytes=size,
        )


def _encoding(headers: list[tuple[bytes, bytes]]) -> str:
    values = header_values(headers, b"content-encoding")
    encoding = ", ".join(values).lower() or IDENTITY
    if encoding not in ENCODINGS:
        raise UnsupportedMediaType(
            f"The content encoding '{encoding[:40]}' is not supported; send the body as it is, "
            f"or with one of {', '.join(ENCODINGS[1:])}."
        )
    return encoding


def _plain(headers: list[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    """The headers of the same request with its body inflated."""
    gone = (b"content-encoding", b"content-length", b"transfer-encoding")
    kept = [(name, value) for name, value in headers if name not in gone]
    return [*kept, (b"content-length", str(length).encode())]


def _length(value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise InvalidRequest("The Content-Length header is not a number.")
    return int(value[:20])
