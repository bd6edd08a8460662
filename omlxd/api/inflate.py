"""Undoes a body's content encoding, never beyond a limit."""

import io
import zlib
from typing import Final, Protocol

import zstandard

from omlxd.errors import InvalidRequest
from omlxd.units import MiB

IDENTITY: Final = "identity"
ENCODINGS: Final = (IDENTITY, "gzip", "x-gzip", "deflate", "zstd")
LARGEST_WINDOW: Final = 8 * MiB
"""What a zstd frame may have its reader hold; RFC 9659 allows no more over HTTP."""
MOST_MEMBERS: Final = 64
"""Of a gzip body. Each costs, also an empty one; clients send one, or some that they joined."""


class _Reader(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class TooLarge(Exception):
    """The body grows beyond the limit; how far is not found out."""


def inflate(body: bytes, encoding: str, limit: int) -> bytes:
    """``body`` without ``encoding`` (one of ENCODINGS); at most ``limit`` bytes.

    Raises TooLarge, and InvalidRequest for what is not in that encoding or cut short.
    """
    if encoding == IDENTITY or not body:
        return body
    try:
        # One byte more than allowed tells; what a bomb holds beyond it is never made.
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
    # HTTP's deflate is zlib's format; some clients send it without zlib's header.
    bare = len(body) < 2 or body[0] & 0x0F != 8 or int.from_bytes(body[:2]) % 31 != 0
    return _Zlib(body, -zlib.MAX_WBITS if bare else zlib.MAX_WBITS, members=1)


def _read(reader: _Reader, most: int) -> bytes:
    parts, size = [], 0
    while size < most and (part := reader.read(min(MiB, most - size))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


class _Zlib:
    """Up to ``members`` streams one after the other."""

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
        """Whether another stream follows; zeros that pad the end are none."""
        self._rest = self._inflater.unused_data
        if not self._rest.strip(b"\0"):
            return False
        if self._members_left == 0:
            raise zlib.error("too much follows its end")
        self._members_left -= 1
        self._inflater = zlib.decompressobj(self._window)
        return True
