"""Reads the headers of safetensors files, and checks that each file holds its tensors.

The format is a length of 8 bytes (little endian), that many bytes of JSON (name -> dtype,
shape, begin and end), then the data. Every number of a header is compared with the size of the
file before it is used.
"""

import hashlib
import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from omlxd.printable import printable

LONGEST_HEADER = 10 * 1024 * 1024
"""Bytes, about 70,000 tensors. Parsed, it may take 25 times as much. The format allows 100 MB."""
MOST_DIMENSIONS = 32
LFS_MARK = b"version https://git-lfs.github.com/spec/"

# Bits of one element: the dtypes of the safetensors format.
DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


# Bytes of one element of the types that models compute in.
FLOATS: Mapping[str, int] = {"F16": 2, "BF16": 2, "F32": 4}


class BadFile(Exception):
    """A file that is not what its name says. The text is the reason, without a path.

    Both may contain names from the folder, and both are shown, so they are made printable.
    """

    def __init__(self, file: str, reason: str) -> None:
        self.file, self.reason = printable(file), printable(reason)
        super().__init__(f"{self.file}: {self.reason}")


class Missing(BadFile):
    """The file is not there, or not yet."""


class Unreadable(BadFile):
    """The file could not be read this time; its contents may be good."""


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """One checked safetensors file. ``tensors``: name -> bytes, by dtype and shape."""

    name: str
    size: int
    modified_ns: int
    tensors: Mapping[str, int]
    digest: str
    """The digest of the header, and so of every name, dtype, shape and offset."""
    floats: Mapping[int, int]
    """Bytes of one element -> bytes of all tensors of such floating-point numbers."""


def read_weights(path: str, name: str) -> WeightsFile:
    """The header of the file ``path``. Errors call the file ``name``. Raises BadFile."""
    try:
        # Non-blocking, because the file may have become a pipe since it was listed.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unreadable(name, f"cannot be opened ({error.strerror})") from error
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise BadFile(name, "is not a regular file")
        raw = _header(file, name, about.st_size)
    room = about.st_size - 8 - len(raw)
    header = _parse(raw, name)
    tensors = dict(_tensors(header, room, name))
    floats: Counter[int] = Counter()
    for tensor, size in tensors.items():
        if (element := FLOATS.get(header[tensor]["dtype"])) is not None:
            floats[element] += size
    digest = hashlib.blake2b(raw, digest_size=16).hexdigest()
    return WeightsFile(name, about.st_size, about.st_mtime_ns, tensors, digest, floats)


def is_lfs_pointer(start: bytes) -> bool:
    return start.startswith(LFS_MARK)


def _header(file: BinaryIO, name: str, size: int) -> bytes:
    start = file.read(8)
    if is_lfs_pointer(start + file.read(len(LFS_MARK))):
        raise BadFile(name, "is a git-LFS pointer, not the file itself; run 'git lfs pull'")
    length = int.from_bytes(start, "little")
    if len(start) < 8:
        raise BadFile(name, f"is truncated: {size} bytes are too few for a safetensors file")
    if length > LONGEST_HEADER:
        raise BadFile(name, f"is no safetensors file: it claims a header of {length} bytes")
    if length > size - 8:
        raise BadFile(name, f"is truncated: {size} bytes, but a header of {length} bytes")
    file.seek(8)
    raw = file.read(length)
    if len(raw) < length:
        raise BadFile(name, "became shorter while it was read")
    return raw


def _parse(raw: bytes, name: str) -> dict[str, Any]:
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadFile(name, "has a damaged header (not JSON)") from error
    if not isinstance(header, dict):
        raise BadFile(name, "has a damaged header (not a table)")
    header.pop("__metadata__", None)
    return header


def _tensors(header: Mapping[str, Any], room: int, name: str) -> Iterable[tuple[str, int]]:
    """Checks that the tensors lie one after another inside the ``room`` bytes of data."""
    places = []
    for tensor, about in header.items():
        begin, end = _place(tensor, about, name)
        places.append((begin, end))
        yield tensor, end - begin
    position = 0
    for begin, end in sorted(places):
        if begin < position:
            raise BadFile(name, "has a lying header: two tensors share their bytes")
        position = end
    if position > room:
        raise BadFile(name, f"is truncated: its tensors need {position} bytes and {room} are there")


def _place(tensor: str, about: Any, name: str) -> tuple[int, int]:
    match about:
        case {
            "dtype": str(dtype),
            "shape": list(shape),
            "data_offsets": [int(begin), int(end)],
        } if all(type(n) is int and n >= 0 for n in shape):
            pass
        case _:
            raise BadFile(name, f"has a damaged header (tensor {tensor[:80]!r})")
    if dtype not in DTYPE_BITS:
        raise BadFile(name, f"holds a tensor of an unknown type {dtype[:20]!r}")
    bits = DTYPE_BITS[dtype]
    elements = _elements(shape, most=max(0, end - begin) * 8 // bits)
    if begin < 0 or elements is None or end - begin != -(-elements * bits // 8):
        raise BadFile(
            name, f"has a lying header: tensor {tensor[:80]!r} is not of the size it claims"
        )
    return begin, end


def _elements(shape: list[int], most: int) -> int | None:
    """None above ``most``, because the product of a false shape could take forever."""
    if len(shape) > MOST_DIMENSIONS:
        return None
    if 0 in shape:
        return 0
    elements = 1
    for length in shape:
        elements *= length
        if elements > most:
            return None
    return elements
