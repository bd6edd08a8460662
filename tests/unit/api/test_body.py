"""The limits of bodies: size as sent and as decompressed, nesting, time."""

import gzip
import json
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from omlxd.api import body as body_module
from omlxd.api.body import TooLarge, deeper_than, inflate
from omlxd.api.options import ApiOptions
from omlxd.errors import InvalidRequest
from omlxd.units import MiB
from tests.support.asgi import Call
from tests.support.fake_pool import World

CHAT = "/v1/chat/completions"
HELLO = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACK: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-Gzip", gzip.compress),
    "gzip in two members": ("gzip", lambda d: gzip.compress(d[:9]) + gzip.compress(d[9:])),
    "deflate": ("deflate", zlib.compress),
    "bare deflate": ("deflate", bare_deflate),
    "zstd": ("zstd", lambda d: zstandard.ZstdCompressor().compress(d)),
    "zstd without its size": (
        "zstd",
        lambda d: zstandard.ZstdCompressor().compressobj().compress(d),
    ),
}


def packed(kind: str, data: bytes) -> tuple[str, bytes]:
    encoding, pack = PACK[kind]
    if kind == "zstd without its size":
        packer = zstandard.ZstdCompressor().compressobj()
        return encoding, packer.compress(data) + packer.flush()
    return encoding, pack(data)


def chat(body: bytes, encoding: str | None = None, world: World | None = None) -> Call:
    headers = [("content-length", str(len(body)))]
    if encoding is not None:
        headers.append(("content-encoding", encoding))
    return Call((world or World()).app, "POST", CHAT, body=body, headers=headers)


@pytest.mark.parametrize("kind", PACK)
async def test_a_compressed_body_is_read(kind: str) -> None:
    encoding, body = packed(kind, HELLO)
    assert (await chat(body, encoding).end()).status == 200


@pytest.mark.parametrize("kind", PACK)
async def test_a_small_body_that_inflates_beyond_the_limit_is_refused(kind: str) -> None:
    encoding, body = packed(kind, b" " * (16 * MiB))
    assert len(body) < MiB
    call = await chat(body, encoding).end()
    assert (call.status, call.error["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("kind", PACK)
def test_a_body_may_inflate_to_the_limit_and_not_a_byte_further(kind: str) -> None:
    data = bytes(range(256)) * 40
    encoding, body = packed(kind, data)
    encoding = encoding.lower()
    assert inflate(body, encoding, len(data)) == data
    with pytest.raises(TooLarge):
        inflate(body, encoding, len(data) - 1)


@pytest.mark.parametrize("kind", [k for k in PACK if k != "zstd without its size"])
async def test_a_body_cut_short_or_of_another_encoding_is_a_client_s_mistake(kind: str) -> None:
    encoding, body = packed(kind, HELLO * 50)
    for wrong in (b"not packed at all", body[:-9], b"\x1f\x8b"):
        call = await chat(wrong, encoding).end()
        assert call.status == 400, wrong


def test_a_zstd_frame_that_asks_for_a_huge_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = packer.compress(bytes(100)) + packer.flush()
    with pytest.raises(InvalidRequest):
        inflate(body, "zstd", MiB)


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "compress", "aws-chunked"])
async def test_other_encodings_are_refused_by_name(encoding: str) -> None:
    call = await chat(HELLO, encoding).end()
    assert (call.status, call.error["code"]) == (415, "unsupported_media_type")
    assert encoding in call.error["message"]


async def test_a_body_too_large_is_refused_announced_or_not() -> None:
    world = World(options=ApiOptions(max_body=1024))
    assert (await chat(b" " * 2000, world=world).end()).status == 413
    call = Call(world.app, "POST", CHAT, body=[b" " * 600, b" " * 600])
    assert (await call.end()).status == 413


@pytest.mark.parametrize("length", ["x", "-1", "1e9", "", "\u00b2"])
async def test_a_length_that_is_no_number_is_refused(length: str) -> None:
    headers = [("content-length", length)]
    call = await Call(World().app, "POST", CHAT, body=HELLO, headers=headers).end()
    assert call.status == 400


async def test_a_deeply_nested_body_is_refused_before_it_is_parsed() -> None:
    for body in (b"[" * 100_000, b'{"a":' * 5000, b'{"x": ' + b"[" * 200 + b"]" * 200 + b"}"):
        call = await chat(body).end()
        assert call.status == 400
        assert "128 levels" in call.error["message"]


async def test_a_body_that_does_not_come_in_time_is_given_up() -> None:
    world = World(options=ApiOptions(body_timeout=0.01))
    call = await Call(world.app, "POST", CHAT, body=()).end()
    assert (call.status, call.error["code"]) == (408, "request_too_slow")


@pytest.mark.parametrize(
    ("body", "depth"),
    [
        (b"1", 0),
        (b'"[[[["', 0),
        (b"[]", 1),
        (b"[[], [], {}]", 2),
        (b'{"a": [{"b": 1}]}', 3),
        (b'["\\"[[[[", "\\\\", [[]]]', 3),
        (b'["\\\\"[[[', 4),
        (b"]]]]]]]][", 1),
        (b'[["never closed [[[[', 2),
        (b"\xff\xfe[[[", 3),
        (b"", 0),
    ],
)
def test_depth_counts_brackets_outside_texts(body: bytes, depth: int) -> None:
    assert not deeper_than(body, depth)
    assert depth == 0 or deeper_than(body, depth - 1)


@pytest.mark.parametrize("wide", [0, 100_000])
def test_depth_is_exact_however_much_lies_beside_it(wide: int) -> None:
    beside = b"[]," * wide
    for depth in (20, 127, 128):
        nest = b"[" * depth + b"]" * depth
        assert not deeper_than(b"[" + beside + nest[1:], 128)
        assert deeper_than(b"[" + beside + nest, depth)


VALUES = st.recursive(
    st.text(st.sampled_from('[]{}"\\a'), max_size=6) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(VALUES.filter(lambda value: not isinstance(value, str)), st.integers(1, 12))
def test_depth_is_exact_wherever_the_text_is_cut_for_other_threads(value: object, cut: int) -> None:
    body, depth = json.dumps(value).encode(), depth_of(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_module, "_SLICE", cut)
        patch.setattr(body_module, "_SHORT_ENOUGH", 0)
        assert not deeper_than(body, depth)
        assert depth == 0 or deeper_than(body, depth - 1)


def test_a_gzip_body_of_very_many_members_is_refused_and_one_of_some_is_not() -> None:
    empty, full = gzip.compress(b""), gzip.compress(b"x")
    assert inflate(full * 64 + bytes(100), "gzip", MiB) == b"x" * 64
    assert inflate(empty * 63 + full, "gzip", MiB) == b"x"
    for body in (empty * 65, empty * (MiB // len(empty)), full * 65):
        with pytest.raises(InvalidRequest, match="too much follows its end"):
            inflate(body, "gzip", MiB)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_is_no_stream_behind_the_first_is_refused(encoding: str) -> None:
    body = (gzip if encoding == "gzip" else zlib).compress(b"x")
    with pytest.raises(InvalidRequest):
        inflate(body + b"more", encoding, MiB)
