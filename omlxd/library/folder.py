"""Reads one folder that should be a model: its config and weights, or the error in it."""

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from omlxd.backend.model_files import (
    first_bad_name,
    impossible_layers,
    is_weight_file,
    lacking,
    missing_shards,
    parse_object,
)
from omlxd.backend.safetensors import (
    BadFile,
    Missing,
    Unreadable,
    WeightsFile,
    is_lfs_pointer,
    read_weights,
)
from omlxd.library.catalog import CatalogModel, is_inside
from omlxd.library.traits import context_length, kind_of, quantization_of, vision_bytes

LARGEST_JSON = 64 * 1024 * 1024
"""Bytes. Even the index of the largest models has only a few MB."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tiktoken.model",
)
INDEX = "model.safetensors.index.json"


class HeaderCache:
    """Headers by real path, so that a scan does not read unchanged files again.

    For a bad file it keeps the error, which may have taken long to find.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], WeightsFile | str] = {}
        self._seen: dict[tuple[str, int, int], WeightsFile | str] = {}

    def read(self, path: str, name: str, about: os.stat_result) -> WeightsFile:
        """Raises BadFile."""
        key = (path, about.st_size, about.st_mtime_ns)
        found = self._known.get(key) or self._read_file(path, name)
        self._known[key] = self._seen[key] = found
        if isinstance(found, str):
            raise BadFile(name, found)
        return found

    def _read_file(self, path: str, name: str) -> WeightsFile | str:
        """The error instead, if the file is bad."""
        try:
            return read_weights(path, name)
        except Unreadable:
            raise
        except BadFile as bad:
            return bad.reason

    def forget_unseen(self) -> None:
        """Called at the end of a scan: files that it did not read are gone or changed."""
        self._known, self._seen = self._seen, {}


class Folder:
    """One model folder. Its links must lead to regular files inside ``root``."""

    def __init__(self, path: str, root: str) -> None:
        self.path = path
        self._root = root
        self.names = sorted(os.listdir(path))

    def file(self, name: str) -> tuple[str, os.stat_result]:
        """Real path and status. Raises BadFile."""
        real = os.path.realpath(os.path.join(self.path, name))
        if not is_inside(real, self._root):
            raise BadFile(name, "is a link that leaves the model folder's root")
        try:
            about = os.stat(real)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                raise Unreadable(name, f"cannot be read ({error.strerror})") from error
            reason = "is a link to nothing" if name in self.names else "is missing"
            raise Missing(name, reason) from error
        if not stat.S_ISREG(about.st_mode):
            raise BadFile(name, "is not a regular file")
        return real, about

    def read(self, name: str) -> bytes:
        """Raises BadFile."""
        real, about = self.file(name)
        if about.st_size > LARGEST_JSON:
            raise BadFile(name, f"is too large ({about.st_size} bytes)")
        try:
            with open(real, "rb") as file:
                data = file.read(LARGEST_JSON + 1)
        except OSError as error:
            raise Unreadable(name, f"cannot be read ({error.strerror})") from error
        if is_lfs_pointer(data[:100]):
            raise BadFile(name, "is a git-LFS pointer, not the file itself; run 'git lfs pull'")
        return data

    def table(self, name: str) -> dict[str, Any]:
        """The file's JSON object with printable texts. Raises BadFile."""
        try:
            table = parse_object(self.read(name))
        except (ValueError, RecursionError) as error:
            raise BadFile(name, "is not valid JSON") from error
        if table is None:
            raise BadFile(name, "is not a JSON object")
        return table


def inspect(model_id: str, folder: Folder, headers: HeaderCache) -> CatalogModel:
    """Raises BadFile with the file at fault."""
    config = folder.table("config.json")
    _refuse_code(config, folder)
    files = _weights(folder, headers)
    _check_tokenizer(folder)
    tensors: dict[str, int] = {}
    for file in files:
        # A tensor that several files hold is loaded once.
        tensors.update(file.tensors)
    if (claim := impossible_layers(config, tensors)) is not None:
        raise BadFile("config.json", claim)
    generation = folder.table("generation_config.json") if _has_generation(folder) else {}
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    return CatalogModel(
        id=model_id,
        path=folder.path,
        kind=kind_of(config, folder.names),
        model_type=str(config["model_type"]),
        architecture=first if isinstance(first, str) else None,
        weights_bytes=sum(tensors.values()),
        vision_bytes=vision_bytes(tensors),
        context_length=context_length(config),
        quantization=quantization_of(config),
        element_bytes=_element_bytes(files),
        fingerprint=_fingerprint(folder, files),
        created=int(folder.file("config.json")[1].st_mtime),
        config=config,
        generation=generation,
    )


def _element_bytes(files: Sequence[WeightsFile]) -> int:
    """Bytes of one activation. The scales of quantised weights have the type of the activations."""
    floats = sum((Counter(file.floats) for file in files), Counter[int]())
    return floats.most_common(1)[0][0] if floats else 2


def _has_generation(folder: Folder) -> bool:
    """Whether it can be read. It only holds defaults, so a model with a damaged one is served."""
    if "generation_config.json" not in folder.names:
        return False
    try:
        folder.table("generation_config.json")
    except BadFile:
        return False
    return True


def _refuse_code(config: Mapping[str, Any], folder: Folder) -> None:
    """Code from a model folder is never run, and its names are checked before any import."""
    if config.get("model_file") is not None:
        raise BadFile("config.json", "asks for Python code of its own, which is never run")
    if not isinstance(config.get("model_type"), str):
        raise BadFile("config.json", "has no model_type")
    _check_names(config, ("model_type",), "config.json")
    if "tokenizer_config.json" in folder.names:
        table = folder.table("tokenizer_config.json")
        _check_names(table, ("chat_template_type", "tool_parser_type"), "tokenizer_config.json")


def _check_names(table: Mapping[str, Any], keys: tuple[str, ...], file: str) -> None:
    """Check the values of ``keys``, in nested tables too: they become parts of module names."""
    if (bad := first_bad_name(table, keys)) is not None:
        raise BadFile(file, f"has no valid {bad[0]}")


def _weights(folder: Folder, headers: HeaderCache) -> Sequence[WeightsFile]:
    """The files that a load reads: ``model*.safetensors``. Other files hold the same weights."""
    names = [name for name in folder.names if is_weight_file(name)]
    if INDEX in folder.names:
        missing, though = _promised_by_index(folder, names), "the index lists it"
    else:
        missing, though = missing_shards(names), "the other shards count on it"
    if missing is not None:
        first, count = missing
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise Missing(first, f"is missing{more}, though {though}")
    if not names:
        found = _other_weights(folder.names)
        raise Missing(
            "model.safetensors",
            f"is missing; found only {found}, and only safetensors are served"
            if found
            else "is missing: the folder has no weights",
        )
    files = []
    for name in names:
        real, about = folder.file(name)
        files.append(headers.read(real, name, about))
    return files


def _promised_by_index(folder: Folder, there: Collection[str]) -> tuple[str, int] | None:
    places = folder.table(INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(n, str) for n in places.values()):
        raise BadFile(INDEX, "has no weight_map")
    return lacking(places.values(), there)


def _other_weights(names: Iterable[str]) -> str:
    endings = (".bin", ".gguf", ".pt", ".pth", ".npz", ".ckpt", ".safetensors")
    return ", ".join([name for name in names if name.endswith(endings)][:3])


def _check_tokenizer(folder: Folder) -> None:
    """Check that it exists and has a valid start and end. Otherwise every request would fail."""
    if not any(_may_hold_vocabulary(name) for name in folder.names):
        raise Missing("tokenizer.json", "is missing: the folder has no tokenizer")
    for name in TOKENIZER_FILES:
        if name not in folder.names:
            continue
        real, about = folder.file(name)
        with open(real, "rb") as file:
            begin = file.read(100)
            file.seek(max(0, about.st_size - 100))
            end = file.read(100)
        if about.st_size < 1024 and is_lfs_pointer(begin):
            raise BadFile(name, "is a git-LFS pointer, not the file itself; run 'git lfs pull'")
        if name == "tokenizer.json" and not (
            begin.lstrip()[:1] == b"{" and end.rstrip()[-1:] == b"}"
        ):
            raise BadFile(name, "is cut short or damaged: it is not a JSON object")


def _may_hold_vocabulary(name: str) -> bool:
    """Each family of tokenizers names its vocabulary file differently, so most names may."""
    if name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        return False
    return any(part in name for part in ("token", "vocab", "piece", "tekken"))


def _fingerprint(folder: Folder, files: Sequence[WeightsFile]) -> str:
    digest = hashlib.blake2b(folder.read("config.json"), digest_size=16)
    for file in files:
        digest.update(f"\0{file.name}\0{file.size}\0{file.modified_ns}\0{file.digest}".encode())
    for name in TOKENIZER_FILES:
        if name in folder.names:
            about = folder.file(name)[1]
            digest.update(f"\0{name}\0{about.st_size}\0{about.st_mtime_ns}".encode())
    return digest.hexdigest()
