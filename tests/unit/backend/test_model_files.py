"""Which model folders are refused before any runtime sees them."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from omlxd.backend.model_files import check_model_files, missing_shards, tensors_of
from omlxd.errors import ModelAway, ModelBroken, ModelLoadFailed
from omlxd.units import MiB


def write_weights(file: Path, data: bytes = b"x" * 16, **header: Any) -> Path:
    table = {
        "__metadata__": {"format": "mlx"},
        "w": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]},
        **header,
    }
    encoded = json.dumps(table).encode()
    file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_weights(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content))


def test_a_whole_folder_passes_with_its_sizes(folder: Path) -> None:
    files = check_model_files(folder)
    assert files.tensor_bytes == 16
    assert [f.name for f in files.weight_files] == ["model.safetensors"]


def test_a_folder_that_has_left_is_not_broken(folder: Path) -> None:
    with pytest.raises(ModelAway, match=r"/none does not exist any more \(was it moved"):
        check_model_files(folder / "none")


def test_truncated_weights_are_named(folder: Path) -> None:
    """T61"""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelBroken, match=r"model\.safetensors is truncated"):
        check_model_files(folder)


@pytest.mark.parametrize("keep", [0, 3, 8, 20])
def test_weights_cut_in_the_header_are_named(folder: Path, keep: int) -> None:
    """T61"""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelBroken, match=r"model\.safetensors"):
        check_model_files(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_git_lfs_pointer_is_named(folder: Path, name: str) -> None:
    """T61"""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / name).write_text(pointer)
    with pytest.raises(ModelBroken, match=f"{name} is a git-LFS pointer"):
        check_model_files(folder)


@pytest.mark.parametrize(
    "tensor",
    [
        {"data_offsets": [0]},
        {"data_offsets": [5, 2]},
        {"data_offsets": ["a", "b"]},
        {"data_offsets": None},
        {},
        [],
    ],
)
def test_a_header_of_nonsense_is_a_broken_file(tmp_path: Path, tensor: Any) -> None:
    with pytest.raises(ModelBroken, match="damaged header"):
        tensors_of(write_weights(tmp_path / "model.safetensors", t=tensor))


@pytest.mark.parametrize(
    "lie",
    [
        {"dtype": "U8", "shape": [4], "data_offsets": [12, 16]},
        {"dtype": "F32", "shape": [10**12], "data_offsets": [16, 20]},
        {"dtype": "X9", "shape": [4], "data_offsets": [16, 20]},
    ],
)
def test_a_header_that_lies_about_a_tensor_is_a_broken_file(tmp_path: Path, lie: Any) -> None:
    """T61: shared bytes, a size that the bytes do not have, a type that does not exist."""
    file = write_weights(tmp_path / "model.safetensors", data=b"x" * 20, t=lie)
    with pytest.raises(ModelBroken, match=r"lying header|unknown type"):
        tensors_of(file)


@pytest.mark.parametrize("shape", [[0], [5, 0], [0, 10**12]])
def test_a_tensor_without_elements_is_no_lie(tmp_path: Path, shape: list[int]) -> None:
    empty: Any = {"dtype": "F32", "shape": shape, "data_offsets": [16, 16]}
    file = write_weights(tmp_path / "model.safetensors", empty=empty)
    assert sum(tensors_of(file).values()) == 16


def test_a_header_that_is_no_table_is_a_broken_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes((2).to_bytes(8, "little") + b"[]")
    with pytest.raises(ModelBroken):
        tensors_of(file)


def test_a_missing_shard_is_named(folder: Path) -> None:
    write_json(
        folder / "model.safetensors.index.json",
        {"weight_map": {"w": "model.safetensors", "v": "model-00002-of-00002.safetensors"}},
    )
    with pytest.raises(ModelBroken, match="lacks model-00002-of-00002"):
        check_model_files(folder)


@pytest.mark.parametrize(
    ("shards", "missing"),
    [
        (["1-of-00002"], "2-of-00002"),
        (["3-of-00003"], "1-of-00003.safetensors and 1 more shards"),
        (["1-of-00001"], None),
        (["0-of-00002", "1-of-00002"], None),
        (["0-of-00003", "9-of-00003"], "1-of-00003.safetensors and 2 more shards"),
    ],
)
def test_a_shard_that_others_count_on_is_named(
    folder: Path, shards: list[str], missing: str | None
) -> None:
    """T61"""
    (folder / "model.safetensors").unlink()
    for shard in shards:
        write_weights(folder / f"model-0000{shard}.safetensors")
    if missing is None:
        assert len(check_model_files(folder).weight_files) == len(shards)
    else:
        with pytest.raises(ModelBroken, match=f"lacks model-0000{missing}.*count on"):
            check_model_files(folder)


def test_shards_that_count_on_countless_others_cost_nothing() -> None:
    names = [f"model{number}-00001-of-99999.safetensors" for number in range(1000)]
    tracemalloc.start()
    missing = missing_shards(names)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert missing == ("model0-00002-of-99999.safetensors", 1000 * 99_998)
    assert most < 10 * MiB


def test_a_folder_without_safetensors_is_broken(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelBroken, match="only safetensors"):
        check_model_files(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", '"text"', "{}", '{"model_type": 3}'])
def test_a_damaged_config_is_named(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelBroken, match=r"config\.json"):
        check_model_files(folder)


def test_a_missing_config_is_named(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelBroken, match=r"config\.json cannot be read"):
        check_model_files(folder)


def test_a_model_with_its_own_code_is_refused(folder: Path) -> None:
    write_json(folder / "config.json", {"model_type": "llama", "model_file": "model.py"})
    with pytest.raises(ModelLoadFailed, match="never run"):
        check_model_files(folder)


@pytest.mark.parametrize("name", ["..evil", "os.path", "a/b", "", " x"])
def test_names_that_pick_modules_must_be_plain(folder: Path, name: str) -> None:
    for config in ({"model_type": name}, {"model_type": "llama", "t": {"model_type": name}}):
        write_json(folder / "config.json", config)
        with pytest.raises(ModelLoadFailed, match="plain name"):
            check_model_files(folder)
    write_json(folder / "config.json", {"model_type": "llama"})
    for key in ("chat_template_type", "tool_parser_type"):
        write_json(folder / "tokenizer_config.json", {key: name})
        with pytest.raises(ModelLoadFailed, match=key):
            check_model_files(folder)


@pytest.mark.parametrize(
    "claim",
    [
        {"num_hidden_layers": 20_000},
        {"text_config": {"n_layer": 300}},
        {"llm": {"part": {"num_kv_reuse_layers": 10**30}}},
        {"hybrid_override_pattern": "M*" * 200},
        {"layer_types": ["full_attention"] * 300},
    ],
)
def test_a_config_that_claims_layers_without_weights_is_named(
    folder: Path, claim: dict[str, Any]
) -> None:
    """T61"""
    write_json(folder / "config.json", {"model_type": "llama", **claim})
    with pytest.raises(ModelBroken, match=r"config\.json claims \d+ layers"):
        check_model_files(folder)


@pytest.mark.parametrize(
    "claim",
    [
        {"num_hidden_layers": 0},
        {"num_hidden_layers": 256, "vision_config": {"num_hidden_layers": 64}},
        {"num_hidden_layers": None, "num_layers": "many"},
        {"max_window_layers": 10**9, "num_experts": 4096, "max_position_embeddings": 10**7},
        {"quantization_config": {"ignored_layers": ["lm_head"] * 1000}},
        {"moe_layers_enum": ",".join(map(str, range(1000)))},
    ],
)
def test_what_real_configs_claim_is_believed(folder: Path, claim: dict[str, Any]) -> None:
    write_json(folder / "config.json", {"model_type": "llama", **claim})
    check_model_files(folder)


def test_layers_that_the_weights_have_are_believed(folder: Path) -> None:
    names = [f"model.layers.{n}.experts.{e}.w" for n in range(300) for e in range(2)]
    empty: Any = {"dtype": "U8", "shape": [0], "data_offsets": [16, 16]}
    write_weights(folder / "model.safetensors", **dict.fromkeys(names, empty))
    write_json(folder / "config.json", {"model_type": "llama", "num_hidden_layers": 300})
    check_model_files(folder)
    write_json(folder / "config.json", {"model_type": "llama", "num_hidden_layers": 301})
    with pytest.raises(ModelBroken, match=r"claims 301 layers .*, and .* have 300"):
        check_model_files(folder)


def test_a_config_of_too_many_levels_is_named(folder: Path) -> None:
    (folder / "config.json").write_text('{"a":' * 5000 + "{}" + "}" * 5000)
    with pytest.raises(ModelBroken, match=r"config\.json is not JSON"):
        check_model_files(folder)


def test_half_a_character_in_an_index_can_be_shown(folder: Path) -> None:
    places = {"weight_map": {"a": "\ud800.safetensors"}}
    write_json(folder / "model.safetensors.index.json", places)
    with pytest.raises(ModelBroken, match=r"lacks \\ud800\.safetensors"):
        check_model_files(folder)
