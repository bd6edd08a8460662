"""Reads GGUF files: the metadata, and the tensors as float32.

It only supports the tensor formats of the files used here: F32, Q4_1, Q8_0.
The layout: github.com/ggml-org/ggml/blob/master/docs/gguf.md; the blocks: ggml-common.h there.
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class NotReadable(Exception):
    """The file is not GGUF, or has content that this reader does not support."""


@dataclass(frozen=True, slots=True)
class Tensor:
    shape: tuple[int, ...]  # rows first
    kind: int
    offset: int  # of the first byte in the file


SCALARS = dict(enumerate(("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")))
STRING, ARRAY = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8
BLOCK_BYTES = {Q4_1: 20, Q8_0: 34}  # of 32 values each


class GgufFile:
    """The metadata and the tensors of a GGUF file of version 3, little-endian."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        magic, version = self._take("4s"), self._take("I")
        if (magic, version) != (b"GGUF", 3):
            raise NotReadable(f"not a GGUF file of version 3 ({magic!r}, {version})")
        tensors, keys = self._take("Q"), self._take("Q")
        self.meta = {self._string(): self._value(self._take("I")) for _ in range(keys)}
        self.tensors = dict(self._tensor() for _ in range(tensors))
        align = self.meta.get("general.alignment", 32)
        self._start = -(-self._at // align) * align

    def _take(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        raw: bytes = self._take(f"{self._take('Q')}s")
        return raw.decode()

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, count = self._take("I"), self._take("Q")
            return [self._value(inner) for _ in range(count)]
        return self._take(SCALARS[kind] or "")

    def _tensor(self) -> tuple[str, Tensor]:
        name = self._string()
        shape = tuple(self._take("Q") for _ in range(self._take("I")))
        return name, Tensor(shape[::-1], self._take("I"), self._take("Q"))

    def dense(self, name: str) -> Array:
        """The tensor in float32, with its quantised blocks of 32 values expanded."""
        tensor = self.tensors[name]
        count = int(np.prod(tensor.shape))
        start = self._start + tensor.offset
        if tensor.kind == F32:
            return np.frombuffer(self._data, "<f4", count, start).reshape(tensor.shape)
        if (width := BLOCK_BYTES.get(tensor.kind)) is None:
            raise NotReadable(f"tensor {name} is of kind {tensor.kind}, which is not known here")
        raw = np.frombuffer(self._data, np.uint8, count // 32 * width, start)
        return expand(raw.reshape(-1, width), tensor.kind).reshape(tensor.shape)


def expand(blocks: Array, kind: int) -> Array:
    """Blocks (n, bytes) to values (n, 32): Q4_1 is d * q + m, Q8_0 is d * q with a signed q."""
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    if kind == Q8_0:
        return scale * blocks[:, 2:].view(np.int8).astype(np.float32)
    least = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
    packed = blocks[:, 4:]  # values 0-15 in the low halves, 16-31 in the high ones
    return scale * np.hstack([packed & 15, packed >> 4]).astype(np.float32) + least
