"""Reads the body of each request, within limits of size, time and nesting."""

import asyncio
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import zstandard
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlxd.api.connection import ClientGone
from omlxd.api.security import header_values
from omlxd.errors import BodyTooLarge, InvalidRequest, RequestTooSlow, UnsupportedMediaType
from omlxd.units import KiB, MiB, format_bytes

SHORT = MiB
"""Bytes. A shorter body is checked on the event loop, a longer one in a thread."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Attributes:
    size: bytes, of the body as sent and of the decompressed body.
    depth: of JSON.
    seconds: from the head of the request to the end of its body.
    """

    size: int
    depth: int
    seconds: float


class BodyLimit:
    """ASGI: gives the application whole, decompressed bodies within ``limits``.

    Raises BodyTooLarge (by its header, as sent or as decompressed), InvalidRequest for a body that
    is nested too deeply or is not in its content encoding, UnsupportedMediaType, RequestTooSlow.
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
    """The headers for the decompressed body."""
    gone = (b"content-encoding", b"content-length", b"transfer-encoding")
    kept = [(name, value) for name, value in headers if name not in gone]
    return [*kept, (b"content-length", str(length).encode())]


def _length(value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise InvalidRequest("The Content-Length header is not a number.")
    return int(value[:20])


IDENTITY: Final = "identity"
ENCODINGS: Final = (IDENTITY, "gzip", "x-gzip", "deflate", "zstd")
LARGEST_WINDOW: Final = 8 * MiB
"""Most memory that a zstd frame may ask of its reader. RFC 9659 sets this limit for HTTP."""
MOST_MEMBERS: Final = 64
"""Members of a gzip body. Even an empty member takes time; clients send one or a few."""


class _Reader(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class TooLarge(Exception):
    """The decompressed body is larger than the limit. It was not read to its end."""


def inflate(body: bytes, encoding: str, limit: int) -> bytes:
    """``body`` decompressed from ``encoding``, one of ENCODINGS; at most ``limit`` bytes.

    Raises TooLarge, and InvalidRequest for a body that is not in that encoding or is incomplete.
    """
    if encoding == IDENTITY or not body:
        return body
    try:
        # One byte beyond the limit is enough to know. The rest of a bomb is never decompressed.
        data = _read(_reader(body, encoding), limit + 1)
    except (EOFError, zlib.error, zstandard.ZstdError) as error:
        raise InvalidRequest(
            f"The body is not in the content encoding '{encoding}' that its header names: {error}."
        ) from None
    if len(data) > limit:
        raise TooLarge
    return data


def _reader(body: bytes, encoding: str) -> _Reader:
    if encoding in ("gzip", "x-gzip"):
        return _Zlib(body, zlib.MAX_WBITS | 16, members=MOST_MEMBERS)
    if encoding == "zstd":
        decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
        return decompressor.stream_reader(io.BytesIO(body), read_across_frames=True)
    # HTTP's deflate is the zlib format. Some clients send it without the zlib header.
    bare = len(body) < 2 or body[0] & 0x0F != 8 or int.from_bytes(body[:2]) % 31 != 0
    return _Zlib(body, -zlib.MAX_WBITS if bare else zlib.MAX_WBITS, members=1)


def _read(reader: _Reader, most: int) -> bytes:
    parts, size = [], 0
    while size < most and (part := reader.read(min(MiB, most - size))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


class _Zlib:
    """Reads up to ``members`` zlib or gzip streams that follow each other."""

    def __init__(self, body: bytes, window: int, *, members: int) -> None:
        self._window = window
        self._inflater = zlib.decompressobj(window)
        self._rest = body
        self._members_left = members - 1

    def read(self, size: int = -1, /) -> bytes:
        while True:
            if self._inflater.eof and not self._next():
                return b""
            data = self._inflater.decompress(self._rest, max(size, 1))
            self._rest = self._inflater.unconsumed_tail
            if data:
                return data
            if not self._inflater.eof:
                raise EOFError("it is cut short")

    def _next(self) -> bool:
        """Whether another stream follows. Zeros at the end are padding."""
        self._rest = self._inflater.unused_data
        if not self._rest.strip(b"\0"):
            return False
        if self._members_left == 0:
            raise zlib.error("too much follows its end")
        self._members_left -= 1
        self._inflater = zlib.decompressobj(self._window)
        return True


_RUN: Final = re.compile(rb"\[+|\]+")
_BRACES_TO_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_OTHER: Final = bytes(b for b in range(256) if b not in b"[]{}")
_SLICE: Final = 128 * KiB
"""Bytes of one call; a longer call would make every other thread wait for the GIL."""
_ROUNDS: Final = 8
"""Most rounds that remove pairs. Each leaves less for the slow loop at the end."""
_SHORT_ENOUGH: Final = 100_000
"""Brackets that the loop takes without further rounds."""


def deeper_than(body: bytes, limit: int) -> bool:
    """Whether arrays and objects are nested more than ``limit`` deep, without parsing the body.

    For a body that is not JSON the result may be wrong by a few levels. The largest body takes
    some seconds, so call this in a thread.
    """
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    brackets = b"".join(_brackets(body))
    for _ in range(min(_ROUNDS, limit)):
        if len(brackets) < _SHORT_ENOUGH:
            break
        # Removing all innermost pairs makes everything one level less deep.
        brackets = b"".join(_without_pairs(brackets))
        limit -= 1
    depth = 0
    for run in _RUN.finditer(brackets):
        length = run.end() - run.start()
        if brackets[run.start()] == 0x5B:
            depth += length
            if depth > limit:
                return True
        else:
            depth = max(0, depth - length)
    return False


def _brackets(body: bytes) -> Iterator[bytes]:
    """Only the brackets outside of strings; braces become ``[`` and ``]``."""
    start, inside = 0, 0
    while start < len(body):
        piece = body[start : start + _SLICE]
        # Do not cut between a backslash and the character that it escapes.
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = body[start : start + _SLICE + 1]
        start += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[inside::2]).translate(_BRACES_TO_BRACKETS, _OTHER)
        inside = (inside + len(parts) - 1) % 2


def _without_pairs(brackets: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(brackets):
        end = start + _SLICE
        # Do not cut a pair in two.
        end += brackets[end - 1 : end + 1] == b"[]"
        yield brackets[start:end].replace(b"[]", b"")
        start = end
