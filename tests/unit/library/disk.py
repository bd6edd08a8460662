"""Model folders for tests of the scan: small, real files."""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

SIZES = {"F32": 4, "BF16": 2, "U32": 4, "U8": 1}
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 2048,
}


def safetensors(tensors: Mapping[str, tuple[str, tuple[int, ...]]], **changes: Any) -> bytes:
    """The bytes of a file; ``changes`` replace header entries of the tensor ``a``."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    position = 0
    for name, (dtype, shape) in tensors.items():
        size = prod(shape) * SIZES[dtype]
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [position, position + size],
        }
        position += size
    header.get("a", {}).update(changes)
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(position)


ONE_TENSOR = {"a": ("F32", (4, 4)), "b": ("BF16", (8,))}
"""64 + 16 bytes."""


def make_model(folder: Path, *, config: Mapping[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    (folder / "model.safetensors").write_bytes(safetensors(ONE_TENSOR))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def make_hub_model(cache: Path, name: str, *, commit: str = "a" * 40, ref: bool = True) -> Path:
    """A model in the layout of huggingface_hub: links from the snapshot into blobs."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir(exist_ok=True)
    plain = make_model(repository / "made")
    for number, file in enumerate(sorted(plain.iterdir())):
        blob = repository / "blobs" / f"{number}{commit[1:]}"
        file.rename(blob)
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / blob.name)
    plain.rmdir()
    if ref:
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
    return snapshot
