"""Undoes a body's content encoding, never beyond a limit."""

import gzip
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
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise InvalidRequest(
            f"The body is not in the content encoding '{encoding}' that its header names: {error}."
        ) from None
    if len(data) > limit:
        raise TooLarge
    return data


def _reader(body: bytes, encoding: str) -> _Reader:
    source = io.BytesIO(body)
    if encoding in ("gzip", "x-gzip"):
        return gzip.GzipFile(fileobj=source)
    if encoding == "zstd":
        decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
        return decompressor.stream_reader(source, read_across_frames=True)
    return _Deflate(body)


def _read(reader: _Reader, most: int) -> bytes:
    parts, size = [], 0
    while size < most and (part := reader.read(min(MiB, most - size))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


class _Deflate:
    """HTTP's deflate is zlib's format; some clients send it without zlib's header."""

    def __init__(self, body: bytes) -> None:
        bare = len(body) < 2 or body[0] & 0x0F != 8 or int.from_bytes(body[:2]) % 31 != 0
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS)
        self._rest = body

    def read(self, size: int = -1, /) -> bytes:
        if self._inflater.eof:
            if self._inflater.unused_data:
                raise zlib.error("something follows its end")
            return b""
        data = self._inflater.decompress(self._rest, max(size, 1))
        self._rest = self._inflater.unconsumed_tail
        if not data and not self._inflater.eof:
            raise EOFError("it is cut short")
        return data
