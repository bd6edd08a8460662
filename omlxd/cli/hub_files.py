"""Which files of a repository on the hub make a model, and which are never wanted. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,199}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""At the top of the repository; folders hold other formats of the same weights."""
_TEXTS = re.compile(
    r"tokenizer\.model|tiktoken\.model|(merges|vocab)\.txt|.+\.(json|jinja|tiktoken)"
    r"|(LICENSE|LICENCE|NOTICE|README)(\.(txt|md))?",
    re.IGNORECASE,
)
WEIGHTS = re.compile(r"model.*\.safetensors")
"""What a load reads; other files of the kind repeat the same weights."""
RECORD = ".omlxd-source.json"
"""WorkingMemory the files: where they come from."""


class NotPullable(Exception):
    """What was asked for cannot be had; the text is for the user."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file as the hub describes it.

    Attributes:
        sha256: of files in large file storage; blob: git's id of the others.
    """

    name: str
    size: int
    sha256: str | None = None
    blob: str | None = None


def check_repository(name: str) -> str:
    """``name`` when it is ORG/NAME and nothing else: no address, no path. Raises NotPullable."""
    if not REPOSITORY.fullmatch(name) or ".." in name or "--" in name:
        raise NotPullable(
            f"'{name}' is not the name of a repository. Write ORG/NAME as the hub does, for "
            "example mlx-community/SmolLM2-135M-Instruct."
        )
    return name


def check_revision(name: str) -> str:
    """Raises NotPullable."""
    if not REVISION.fullmatch(name) or ".." in name:
        raise NotPullable(f"'{name}' is not the name of a branch, a tag or a commit.")
    return name


def wanted(files: Iterable[HubFile]) -> tuple[HubFile, ...]:
    """Of a repository's files those that serve, small ones first. Raises NotPullable."""
    plain = [file for file in files if _NAME.fullmatch(file.name)]
    weights = [file for file in plain if WEIGHTS.fullmatch(file.name)]
    texts = [file for file in plain if _TEXTS.fullmatch(file.name)]
    if not weights:
        others = sorted({_ending(f.name) for f in plain} & {".gguf", ".bin", ".pt", ".npz"})
        has = f" It has {', '.join(others)} files." if others else ""
        raise NotPullable(
            f"The repository has no model*.safetensors, and only safetensors are served.{has} Look "
            "for a conversion to MLX of the same model."
        )
    if not any(file.name == "config.json" for file in texts):
        raise NotPullable("The repository has no config.json, so it is not a model.")
    return tuple(sorted([*texts, *weights], key=lambda file: (file.size, file.name)))


def _ending(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:] if dot > 0 else ""
