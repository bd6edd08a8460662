"""Whether the files of a model folder can be served, without any runtime.

This reads only names, sizes and headers, and never executes anything in the folder.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from omlxd.backend.safetensors import BadFile, is_lfs_pointer, read_weights
from omlxd.errors import ModelAway, ModelBroken, ModelLoadFailed
from omlxd.printable import printable

_JSON_LIMIT = 32 * 1024**2
_MODULE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
"""Values that may become part of a module's name: no dots, no separators."""

_LAYER_COUNT = re.compile(r"n(um)?_(\w+_)?layers?")
_ONE_A_LAYER = ("hybrid_override_pattern", "layer_types", "layers_block_type")
_LAYER_NUMBER = re.compile(r"(?:^|\.)(\d+)\.")
_LAYERS_OF_ANY_MODEL = 256
"""A config may claim so many layers with any weights: they are built in a second."""
_SHARD = re.compile(r"(model.*)-(\d{5})-of-(\d{5})\.safetensors")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A folder whose files have been checked.

    Attributes:
        weight_files: every ``model*.safetensors``, in order of name.
        tensor_bytes: bytes of all their tensors.
    """

    folder: Path
    weight_files: tuple[Path, ...]
    tensor_bytes: int


def check_folder(folder: Path) -> None:
    """Raises ModelAway."""
    if not folder.is_dir():
        raise ModelAway(
            f"{folder} does not exist any more (was it moved, or its volume disconnected?).",
            retry_after=10.0,
        )


def check_model_files(folder: Path) -> ModelFiles:
    """Read headers and sizes.

    Raises ModelBroken naming the file, ModelLoadFailed for a complete model that is not served
    (one that brings its own code), or ModelAway.
    """
    check_folder(folder)
    config = _read_config(folder)
    _check_tokenizer_config(folder)
    weight_files = tuple(sorted(f for f in folder.iterdir() if is_weight_file(f.name)))
    if not weight_files:
        raise ModelBroken(
            f"No model*.safetensors in {folder}; only safetensors weights are served.",
            file=str(folder),
        )
    _check_index(folder, weight_files)
    tensors = [tensors_of(file) for file in weight_files]
    if (claim := impossible_layers(config, chain.from_iterable(tensors))) is not None:
        raise _broken(folder / "config.json", claim)
    return ModelFiles(folder, weight_files, sum(sum(t.values()) for t in tensors))


def parse_object(content: bytes) -> dict[str, Any] | None:
    """The JSON object in ``content``, with all its texts made printable; None for other JSON.

    Raises ValueError or RecursionError when it is not JSON.
    """
    table = json.loads(content)
    return _shown(table) if isinstance(table, dict) else None


def _shown(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case list():
            return [_shown(item) for item in value]
        case dict():
            return {printable(key): _shown(item) for key, item in value.items()}
        case _:
            return value


def tensors_of(file: Path) -> Mapping[str, int]:
    """Name -> bytes. Raises ModelBroken when the file is damaged."""
    try:
        return read_weights(str(file), file.name).tensors
    except BadFile as bad:
        raise _broken(file, bad.reason) from None


def is_weight_file(name: str) -> bool:
    """Whether a load reads this file; other safetensors files repeat the same weights."""
    return name.startswith("model") and name.endswith(".safetensors")


def missing_shards(names: Iterable[str]) -> tuple[str, int] | None:
    """The first weight file missing in ``names``, and how many are missing; None if complete.

    The names themselves say how many files there should be (``-of-00003``).
    """
    sets: dict[tuple[str, int], set[int]] = {}
    for name in names:
        if (shard := _SHARD.fullmatch(name)) is not None:
            sets.setdefault((shard[1], int(shard[3])), set()).add(int(shard[2]))
    short = [(stem, total, there) for (stem, total), there in sets.items() if len(there) < total]
    if not short:
        return None
    stem, total, there = short[0]
    first = next(number for number in range(1, total + 1) if number not in there)
    count = sum(total - sum(1 <= number <= total for number in there) for _, total, there in short)
    return f"{stem}-{first:05}-of-{total:05}.safetensors", count


def lacking(promised: Iterable[str], there: Collection[str]) -> tuple[str, int] | None:
    """The same for the names in an index (``promised``)."""
    missing = sorted(set(promised).difference(there))
    return (missing[0], len(missing)) if missing else None


def first_bad_name(table: Mapping[str, Any], keys: Iterable[str]) -> tuple[str, object] | None:
    """The first of ``keys`` whose value is not a plain name, with that value.

    The runtime imports modules by these names. Nested tables are searched too.
    """
    for part in (table, *(value for value in table.values() if isinstance(value, Mapping))):
        for key in keys:
            name = part.get(key)
            if name is not None and not (isinstance(name, str) and _MODULE_NAME.fullmatch(name)):
                return key, name
    return None


def impossible_layers(config: Mapping[str, Any], tensors: Iterable[str]) -> str | None:
    """The error of a config that claims far more layers than its tensors have, otherwise None.

    The runtime would build all of them before it found out that the weights are missing.
    """
    key, claimed = max(_layers_claimed(config), key=lambda claim: claim[1], default=("", 0))
    if claimed <= _LAYERS_OF_ANY_MODEL:
        return None
    numbers = {found[1] for name in tensors if (found := _LAYER_NUMBER.search(name))}
    if claimed <= max(_LAYERS_OF_ANY_MODEL, len(numbers)):
        return None
    return f"claims {claimed} layers ({key}), and the weights have {len(numbers)}"


def _layers_claimed(config: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    tables = [config]
    while tables:
        for key, value in tables.pop().items():
            if isinstance(value, Mapping):
                tables.append(value)
            elif isinstance(value, int) and _LAYER_COUNT.fullmatch(key):
                yield key, value
            elif isinstance(value, str | list) and key in _ONE_A_LAYER:
                yield key, len(value)


def _check_index(folder: Path, weight_files: tuple[Path, ...]) -> None:
    """All shards of the index must exist; without an index, all that the file names announce."""
    file = folder / "model.safetensors.index.json"
    there = {f.name for f in weight_files}
    if not file.exists():
        missing, who = missing_shards(there), "the other shards count on"
    else:
        weight_map = _read_json(file).get("weight_map", {})
        if not isinstance(weight_map, dict):
            raise _broken(file, "has no usable weight_map")
        missing = lacking((str(name) for name in weight_map.values()), there)
        who = f"{file.name} names"
    if missing is not None:
        first, count = missing
        raise ModelBroken(
            f"{folder} lacks {first}"
            + (f" and {count - 1} more shards" if count > 1 else "")
            + f", which {who}.",
            file=str(folder / Path(first).name),
        )


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    config = _read_json(file)
    if config.get("model_file") is not None:
        raise ModelLoadFailed(
            f"{file} names a model_file: the model brings its own code, which is never run here.",
            file=str(file),
        )
    if not isinstance(config.get("model_type"), str):
        raise _broken(file, "has no model_type")
    _check_module_names(file, config, ("model_type",))
    return config


def _check_tokenizer_config(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    if file.exists():
        _check_module_names(file, _read_json(file), ("chat_template_type", "tool_parser_type"))


def _check_module_names(file: Path, table: dict[str, Any], keys: tuple[str, ...]) -> None:
    if (bad := first_bad_name(table, keys)) is not None:
        raise ModelLoadFailed(
            f"{file}: {bad[0]} must be a plain name, not {bad[1]!r}.", file=str(file)
        )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _JSON_LIMIT:
            raise _broken(file, "is far too large")
        content = file.read_bytes()
        if is_lfs_pointer(content):
            raise _broken(file, "is a git-LFS pointer, not the file; run 'git lfs pull'")
        table = parse_object(content)
    except OSError as error:
        raise _broken(file, f"cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise _broken(file, "is not JSON") from None
    if table is None:
        raise _broken(file, "is not a JSON object")
    return table


def _broken(file: Path, what: str) -> ModelBroken:
    return ModelBroken(f"{file} {what}.", file=str(file))
