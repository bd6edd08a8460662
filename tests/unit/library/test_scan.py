"""The scan of model roots, on real files."""

import errno
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from omlxd.library.catalog import RootScan, RootState, merge
from omlxd.library.folder import HeaderCache
from omlxd.library.scan import scan_root
from omlxd.units import MiB
from tests.unit.library.disk import make_hub_model, make_model, safetensors

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 5000000\n"


def scan(root: Path) -> RootScan:
    return scan_root(str(root), HeaderCache())


def ids(found: RootScan) -> list[str]:
    return [model.id for model in found.models]


def skipped(found: RootScan) -> dict[str, str]:
    return {item.name: item.reason for item in found.skipped}


def test_models_are_found_one_and_two_levels_deep(tmp_path: Path) -> None:
    make_model(tmp_path / "small")
    make_model(tmp_path / "org" / "large")
    found = scan(tmp_path)
    assert found.status.state is RootState.OK
    assert ids(found) == ["org/large", "small"]
    assert found.models[1].weights_bytes == 80
    assert found.models[1].path == str(tmp_path / "small")
    assert found.models[1].context_length == 2048


def test_a_root_may_itself_be_a_model(tmp_path: Path) -> None:
    make_model(tmp_path / "alone")
    assert ids(scan(tmp_path / "alone")) == ["alone"]


def test_a_part_of_the_hub_s_cache_as_a_root_gives_the_same_model(tmp_path: Path) -> None:
    """The cache, a repository of it, a snapshot, and a link to a repository by another name."""
    snapshot = make_hub_model(tmp_path / "hub", "acme/tiny")
    repository = snapshot.parent.parent
    (tmp_path / "link").symlink_to(repository)
    for root in (tmp_path / "hub", repository, snapshot, tmp_path / "link"):
        found = scan(root)
        assert (ids(found), found.broken, found.skipped) == (["acme/tiny"], (), ()), root


def test_a_root_that_is_only_named_like_a_repository_is_a_folder_of_models(tmp_path: Path) -> None:
    make_model(tmp_path / "models--mine" / "small")
    assert ids(scan(tmp_path / "models--mine")) == ["small"]


def test_the_hugging_face_cache_is_read_through_its_links(tmp_path: Path) -> None:
    make_hub_model(tmp_path, "org/name")
    make_hub_model(tmp_path, "gpt2")
    (tmp_path / "datasets--org--data").mkdir()
    (tmp_path / ".locks").mkdir()
    found = scan(tmp_path)
    assert ids(found) == ["gpt2", "org/name"]
    assert found.broken == found.skipped == ()


def test_the_main_revision_of_the_hugging_face_cache_is_served(tmp_path: Path) -> None:
    make_hub_model(tmp_path, "org/name", commit="a" * 40, ref=False)
    make_hub_model(tmp_path, "org/name", commit="b" * 40)
    (found,) = scan(tmp_path).models
    assert found.path.endswith("b" * 40)


def test_a_pinned_revision_without_a_main_is_served_when_it_is_the_only_one(
    tmp_path: Path,
) -> None:
    make_hub_model(tmp_path, "org/name", ref=False)
    assert ids(scan(tmp_path)) == ["org/name"]
    make_hub_model(tmp_path, "org/name", commit="b" * 40, ref=False)
    found = scan(tmp_path)
    assert ids(found) == []
    assert "there are 2 snapshots" in skipped(found)["org/name"]


def test_an_unfinished_download_is_reported(tmp_path: Path) -> None:
    (tmp_path / "models--org--name" / "blobs").mkdir(parents=True)
    found = scan(tmp_path)
    assert "download is not complete" in skipped(found)["org/name"]


@pytest.mark.parametrize("ref", ["../../../etc", "", "main", "a" * 40 + "/.."])
def test_a_reference_that_names_no_commit_is_refused(tmp_path: Path, ref: str) -> None:
    make_hub_model(tmp_path, "org/name")
    (tmp_path / "models--org--name" / "refs" / "main").write_text(ref)
    assert "does not name a commit" in skipped(scan(tmp_path))["org/name"]


def test_a_link_that_leaves_the_root_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    outside = make_model(tmp_path / "outside")
    make_model(root / "good")
    (root / "linked").symlink_to(outside)
    inner = make_model(root / "org" / "inner")
    (inner / "model.safetensors").unlink()
    (inner / "model.safetensors").symlink_to(outside / "model.safetensors")
    found = scan(root)
    assert ids(found) == ["good"]
    assert "leaves the root" in skipped(found)["linked"]
    assert [(b.id, b.file) for b in found.broken] == [("org/inner", "model.safetensors")]
    assert str(outside) not in found.broken[0].reason


def test_a_link_inside_the_root_is_followed(tmp_path: Path) -> None:
    make_model(tmp_path / "store" / "real")
    (tmp_path / "alias").symlink_to(tmp_path / "store" / "real")
    assert ids(scan(tmp_path)) == ["alias", "store/real"]


def test_a_root_that_is_a_link_is_followed(tmp_path: Path) -> None:
    make_model(tmp_path / "real" / "m")
    (tmp_path / "root").symlink_to(tmp_path / "real")
    assert ids(scan(tmp_path / "root")) == ["m"]


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    make_model(tmp_path / "m")
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "up").symlink_to(tmp_path)
    (tmp_path / "org" / "self").symlink_to(tmp_path / "org")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert ids(scan(tmp_path)) == ["m"]


def test_junk_is_skipped_and_stops_nobody(tmp_path: Path) -> None:
    make_model(tmp_path / "good")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter" / "adapters.safetensors").write_bytes(b"x")
    make_model(tmp_path / "a name with spaces")
    (make_model(tmp_path / "pipeline") / "model_index.json").write_text("{}")
    found = scan(tmp_path)
    assert ids(found) == ["good"]
    reasons = skipped(found)
    assert set(reasons) == {"empty", "adapter", "a name with spaces", "pipeline"}
    assert "adapter without its base" in reasons["adapter"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (b"", "truncated"),
        (b"\x10\0\0", "truncated"),
        (POINTER, "git-LFS pointer"),
        (b"\xff" * 100, "claims a header"),
        ((1000).to_bytes(8, "little") + b"{}", "truncated"),
        ((2).to_bytes(8, "little") + b"[]", "not a table"),
        ((2).to_bytes(8, "little") + b"{x", "not JSON"),
        (safetensors({"a": ("F32", (4,))})[:-1], "truncated"),
        (safetensors({"a": ("F32", (4,))}, shape=[5]), "not of the size"),
        (safetensors({"a": ("F32", (4,))}, shape=[10**15]), "not of the size"),
        (safetensors({"a": ("F32", (4,))}, shape=[10**18] * 200_000), "not of the size"),
        (safetensors({"a": ("F32", (4,))}, shape=[4] + [1] * 32), "not of the size"),
        ((11 * MiB).to_bytes(8, "little") + b"{}" + bytes(11 * MiB), "claims a header"),
        (safetensors({"a": ("F32", (4,))}, shape=[-4]), "damaged header"),
        (safetensors({"a": ("F32", (4,))}, shape=[True]), "damaged header"),
        (safetensors({"a": ("F32", (4,))}, shape="4"), "damaged header"),
        (safetensors({"a": ("F32", (4,))}, dtype="F12"), "unknown type"),
        (safetensors({"a": ("F32", (4,))}, data_offsets=[16, 0]), "not of the size"),
        (safetensors({"a": ("F32", (4,))}, data_offsets=[-16, 0]), "not of the size"),
        (safetensors({"a": ("F32", (4,))}, data_offsets=[160, 176]), "truncated"),
        (
            safetensors({"b": ("F32", (4,)), "a": ("F32", (4,))}, data_offsets=[0, 16]),
            "share their bytes",
        ),
    ],
)
def test_a_damaged_weights_file_is_named(tmp_path: Path, damage: bytes, reason: str) -> None:
    """T61: truncated safetensors, git-LFS pointers, false headers: listed as broken."""
    make_model(tmp_path / "good")
    bad = make_model(tmp_path / "bad")
    (bad / "model.safetensors").write_bytes(damage)
    found = scan(tmp_path)
    assert ids(found) == ["good"]
    (broken,) = found.broken
    assert (broken.id, broken.file) == ("bad", "model.safetensors")
    assert reason in broken.reason


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.json", b"{", "not valid JSON"),
        ("config.json", b"[]", "not a JSON object"),
        ("config.json", b"[" * 100_000, "not valid JSON"),
        ("config.json", b"{}", "no model_type"),
        ("config.json", b'{"model_type": 5}', "no model_type"),
        (
            "config.json",
            b'{"model_type": "llava", "text_config": {"model_type": "os.path"}}',
            "no valid model_type",
        ),
        ("config.json", b'{"model_type": "../evil"}', "no valid model_type"),
        ("config.json", b'{"model_type": "a.b"}', "no valid model_type"),
        ("config.json", b'{"model_type": "llama", "model_file": "x.py"}', "never run"),
        ("config.json", POINTER, "git-LFS pointer"),
        ("tokenizer.json", POINTER, "git-LFS pointer"),
        ("tokenizer.json", b'{"version": "1.0", "model": {', "cut short"),
        ("tokenizer.json", b"", "cut short"),
        ("tokenizer_config.json", b'{"tool_parser_type": "os.path"}', "tool_parser_type"),
        ("model.safetensors.index.json", b'{"weight_map": 5}', "no weight_map"),
    ],
)
def test_a_broken_file_beside_the_weights_is_named(
    tmp_path: Path, file: str, content: bytes, reason: str
) -> None:
    (make_model(tmp_path / "bad") / file).write_bytes(content)
    (broken,) = scan(tmp_path).broken
    assert (broken.id, broken.file) == ("bad", file)
    assert reason in broken.reason


@pytest.mark.parametrize("other", [None, "tokenizer_config.json", "added_tokens.json"])
def test_a_missing_tokenizer_is_named(tmp_path: Path, other: str | None) -> None:
    """T61: each request would fail at it."""
    bad = make_model(tmp_path / "bad")
    (bad / "tokenizer.json").unlink()
    if other is not None:
        (bad / other).write_text("{}")
    (broken,) = scan(tmp_path).broken
    assert (broken.file, broken.reason) == (
        "tokenizer.json",
        "is missing: the folder has no tokenizer",
    )


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.txt", "spiece.model", "q.tiktoken"])
def test_a_tokenizer_of_another_kind_is_one(tmp_path: Path, name: str) -> None:
    (make_model(tmp_path / "good") / "tokenizer.json").rename(tmp_path / "good" / name)
    assert not scan(tmp_path).broken


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    bad = make_model(tmp_path / "bad")
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (bad / "model.safetensors").rename(bad / names[0])
    index = {"weight_map": {"a": names[0], "b": names[1]}}
    (bad / "model.safetensors.index.json").write_text(json.dumps(index))
    (broken,) = scan(tmp_path).broken
    assert broken.file == names[1]
    assert "index lists it" in broken.reason


def test_weights_of_other_formats_are_not_served(tmp_path: Path) -> None:
    bad = make_model(tmp_path / "bad")
    (bad / "model.safetensors").rename(bad / "pytorch_model.bin")
    (broken,) = scan(tmp_path).broken
    assert "only pytorch_model.bin, and only safetensors are served" in broken.reason


def test_a_pipe_in_place_of_the_weights_holds_up_nobody(tmp_path: Path) -> None:
    bad = make_model(tmp_path / "bad")
    (bad / "model.safetensors").unlink()
    os.mkfifo(bad / "model.safetensors")
    (broken,) = scan(tmp_path).broken
    assert broken.reason == "is not a regular file"


def test_a_copy_of_the_weights_under_another_name_is_not_counted(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    (folder / "consolidated.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert scan(tmp_path).models[0].weights_bytes == 80


def test_vision_parts_are_told_apart(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m", config={"vision_config": {}})
    tensors = {
        "vision_tower.layer.weight": ("BF16", (10,)),
        "model.visual.patch.weight": ("F32", (10,)),
        "language_model.model.visualise.weight": ("F32", (3,)),
    }
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    (model,) = scan(tmp_path).models
    assert (model.weights_bytes, model.vision_bytes) == (72, 60)
    assert model.kind.value == "vision-language"


def test_a_root_that_is_absent_is_no_fault_and_says_what_to_do(tmp_path: Path) -> None:
    found = scan(tmp_path / "nowhere")
    assert found.status.state is RootState.ABSENT
    assert found.status.detail == (
        "There is no such folder yet: put a model there, or mount the volume it is on."
    )


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.EPERM, "Privacy & Security"), (errno.EACCES, "permissions of the folder")],
)
def test_a_denied_root_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    """T63: the system's privacy protection refuses a volume; the status says what to do."""

    def deny(path: str) -> list[str]:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "listdir", deny)
    found = scan(tmp_path)
    assert found.status.state is RootState.DENIED
    assert hint in (found.status.detail or "")


def test_a_root_that_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert scan(tmp_path / "file").status.state is RootState.FAILED


def test_of_two_models_of_one_name_the_first_root_wins(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for root in (first, second, third):
        make_model(root / "m")
    catalog = merge([scan(first), scan(second), scan(third)])
    assert catalog.models["m"].path == str(first / "m")
    assert [(other.name, other.root) for other in catalog.skipped] == [
        ("m", str(second)),
        ("m", str(third)),
    ]
    assert all(str(first) in other.reason for other in catalog.skipped)


def test_what_was_skipped_is_told_with_its_root(tmp_path: Path) -> None:
    roots = [tmp_path / "first", tmp_path / "second"]
    for root in roots:
        (root / "notes").mkdir(parents=True)
    catalog = merge([scan(root) for root in roots])
    assert [(s.name, s.root) for s in catalog.skipped] == [("notes", str(r)) for r in roots]


def test_a_good_model_beats_a_broken_one_of_the_same_name(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (make_model(first / "m") / "config.json").write_text("{")
    make_model(second / "m")
    catalog = merge([scan(first), scan(second)])
    assert set(catalog.models) == {"m"}
    assert catalog.broken == {}


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_the_fingerprint_follows_config_weights_and_tokenizer(tmp_path: Path, file: str) -> None:
    """T23: the same name with new weights is another model."""
    folder = make_model(tmp_path / "m")
    before = scan(tmp_path).models[0].fingerprint
    assert scan(tmp_path).models[0].fingerprint == before
    path = folder / file
    path.write_bytes(path.read_bytes().replace(b"llama", b"qwen2"))
    os.utime(path, ns=(1, 1))
    after = scan(tmp_path).models[0].fingerprint
    assert after != before


def test_headers_of_unchanged_files_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omlxd.library import folder as folder_module

    reads: list[str] = []
    read = vars(folder_module)["read_weights"]

    def counted(path: str, name: str):  # type: ignore[no-untyped-def]
        reads.append(name)
        return read(path, name)

    monkeypatch.setattr(folder_module, "read_weights", counted)
    model = make_model(tmp_path / "m")
    headers = HeaderCache()
    for _ in range(3):
        scan_root(str(tmp_path), headers)
    assert len(reads) == 1
    os.utime(model / "model.safetensors", ns=(5, 5))
    scan_root(str(tmp_path), headers)
    assert len(reads) == 2
    (model / "model.safetensors").write_bytes(b"damaged")
    for _ in range(3):
        (broken,) = scan_root(str(tmp_path), headers).broken
        assert "truncated" in broken.reason
    assert len(reads) == 3


def test_a_damaged_generation_config_only_loses_its_defaults(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    (folder / "generation_config.json").write_text("{")
    assert scan(tmp_path).models[0].generation == {}
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    assert scan(tmp_path).models[0].generation == {"temperature": 0.5}


def test_the_type_of_most_weights_is_the_one_computed_in(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    for tensors, expected in [
        ({"a": ("F32", (100,)), "b": ("BF16", (10,))}, 4),
        ({"w": ("U32", (1000,)), "scales": ("BF16", (10,))}, 2),
        ({"w": ("U32", (1000,))}, 2),
    ]:
        (folder / "model.safetensors").write_bytes(safetensors(tensors))
        assert scan(tmp_path).models[0].element_bytes == expected


def test_a_config_that_claims_layers_without_weights_is_broken(tmp_path: Path) -> None:
    """T61"""
    make_model(tmp_path / "lie", config={"text_config": {"num_hidden_layers": 20_000}})
    (broken,) = scan(tmp_path).broken
    assert (broken.id, broken.file) == ("lie", "config.json")
    assert broken.reason == "claims 20000 layers (num_hidden_layers), and the weights have 0"


def test_a_shard_without_its_siblings_is_broken(tmp_path: Path) -> None:
    """T61"""
    folder = make_model(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "model-00003-of-00003.safetensors")
    (broken,) = scan(tmp_path).broken
    assert broken.file == "model-00001-of-00003.safetensors"
    assert broken.reason == "is missing (and 1 more), though the other shards count on it"


def test_nothing_that_is_found_fails_to_be_shown(tmp_path: Path) -> None:
    """T61: half a character, or a control character, in any name or text of a folder."""
    half = "\ud800\x1b[2J"
    for name in ("config", "method", "index", "bits", "tokenizer", "type"):
        make_model(tmp_path / name, config={"architectures": [half], half: [half, {half: half}]})
    make_model(tmp_path / "method", config={"quantization_config": {"quant_method": half}})
    make_model(tmp_path / "type", config={"model_type": half})
    index = {"weight_map": {"a": f"{half}.safetensors"}}
    (tmp_path / "index" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(
        json.dumps({"tool_parser_type": half})
    )
    (tmp_path / "bits" / "generation_config.json").write_text(json.dumps({half: half}))
    (tmp_path / "bits" / "model.safetensors").write_bytes(
        safetensors({"a": ("F32", (4,))}, dtype=half)
    )
    found = scan(tmp_path)
    assert {model.id for model in found.models} == {"config", "method"}
    assert {broken.id for broken in found.broken} == {"index", "bits", "tokenizer", "type"}
    items: tuple[Any, ...] = (*found.models, *found.broken)
    shown = [value for item in items for value in texts(asdict(item))]
    assert r"\ud800\x1b[2J" in shown
    assert all(text.isprintable() for text in shown)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems know no such names")
def test_a_name_that_is_no_text_is_shown_with_escapes(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    for name in (b"bad\xff", b"models--bad\xff", b"org/bad\xff", b"root\xff"):
        make_model(Path(os.fsdecode(root + b"/" + name)))
    weights = os.fsencode(make_model(tmp_path / "weights")) + b"/model\xff.safetensors"
    Path(os.fsdecode(weights)).write_bytes(b"")
    missing = make_model(tmp_path / "missing")
    (missing / "model.safetensors").rename(Path(os.fsdecode(bytes(missing) + b"/\xff.bin")))
    found = scan(tmp_path)
    alone = scan(Path(os.fsdecode(root + b"/root\xff")))
    absent = scan(Path(os.fsdecode(root + b"/absent\xff")))
    assert r"bad\udcff" in skipped(found)
    named = (*found.broken, *found.skipped, *alone.skipped)
    items: tuple[Any, ...] = (*named, alone.status, absent.status)
    shown = [value for item in items for value in texts(asdict(item))]
    assert len(found.broken) == 2
    assert all(text.isprintable() for text in shown)


def texts(value: object) -> list[str]:
    """All texts in ``value``, at any depth."""
    match value:
        case str():
            return [value]
        case dict():
            return [text for pair in value.items() for item in pair for text in texts(item)]
        case list() | tuple():
            return [text for item in value for text in texts(item)]
        case _:
            return []
