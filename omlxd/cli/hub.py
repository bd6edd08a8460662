"""Asks the Hugging Face hub for the file list of a repository, and for the bytes of its files.

Everything that huggingface_hub raises becomes one sentence for the user.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, get_token, hf_hub_url
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import get_hf_file_metadata, http_get
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, but not by its types
    build_hf_headers,
    disable_progress_bars,
)

from omlxd import __version__
from omlxd.units import format_bytes

REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,199}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""A file at the top of the repository. Its folders hold other formats of the same weights."""
_TEXTS = re.compile(
    r"tokenizer\.model|tiktoken\.model|(merges|vocab)\.txt|.+\.(json|jinja|tiktoken)"
    r"|(LICENSE|LICENCE|NOTICE|README)(\.(txt|md))?",
    re.IGNORECASE,
)
WEIGHTS = re.compile(r"model.*\.safetensors")
"""The weights that a load reads. Other safetensors files repeat them."""
RECORD = ".omlxd-source.json"
"""A file in the model's folder that records the source of the other files."""


class NotPullable(Exception):
    """The model cannot be pulled; the text is for the user."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file as the hub describes it.

    Attributes:
        sha256: for files in large file storage; blob: git's id, for other files.
    """

    name: str
    size: int
    sha256: str | None = None
    blob: str | None = None


def check_repository(name: str) -> str:
    """``name``, when it is ORG/NAME and no address or path. Raises NotPullable."""
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
    """The files of a repository that serving needs, small ones first. Raises NotPullable."""
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


LARGEST = constants.MAX_HTTP_DOWNLOAD_SIZE
PATIENCE = 20.0


class NoHub(NotPullable):
    """The hub cannot be reached."""


class NoAccess(NotPullable):
    """The hub refuses this user."""


@dataclass(frozen=True, slots=True)
class Repository:
    """``commit``: the full id of the requested revision."""

    name: str
    commit: str
    files: tuple[HubFile, ...]


class Hub:
    """The hub at HF_ENDPOINT, with the token in HF_TOKEN or in the hub's own token file."""

    def __init__(self) -> None:
        disable_progress_bars()
        # A retry is visible already: the bar does not move.
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        self._headers = build_hf_headers(library_name="omlxd", library_version=__version__)
        self._api = HfApi(library_name="omlxd", library_version=__version__)
        self.endpoint = constants.ENDPOINT

    def look(self, name: str, revision: str | None) -> Repository:
        """Raises NotPullable."""
        with self._explained(name, revision):
            info = self._api.model_info(
                name, revision=revision, files_metadata=True, timeout=PATIENCE
            )
        if info.sha is None:
            raise NotPullable(f"{self.endpoint} does not say which commit {name} is at.")
        return Repository(name, info.sha, tuple(_files(info.siblings or ())))

    def fetch(
        self, repository: Repository, file: HubFile, target: Path, note: Callable[[int], None]
    ) -> None:
        """Append to ``target`` the bytes of ``file`` that it lacks.

        ``note`` is called with each number of bytes that came; it is negative for bytes that have
        to be fetched again. Raises NotPullable, OSError.
        """
        if file.size > LARGEST:
            raise NotPullable(
                f"{file.name} has {format_bytes(file.size)}; the hub serves files above "
                f"{format_bytes(LARGEST)} to its own program only: 'hf download'."
            )
        with self._explained(repository.name, repository.commit):
            url = hf_hub_url(repository.name, file.name, revision=repository.commit)
            about = get_hf_file_metadata(url, timeout=PATIENCE, headers=self._headers)
            headers = dict(self._headers)
            if urlsplit(url).netloc != urlsplit(about.location).netloc:
                headers.pop("authorization", None)  # only the hub may get the token
            with target.open("ab") as out:
                there = out.tell()
                if there > file.size:
                    out.truncate(0)
                    out.seek(0)
                    note(-there)
                    there = 0
                http_get(
                    about.location,
                    out,
                    resume_size=there,
                    headers=headers,
                    expected_size=file.size,
                    tqdm_class=_listener(note, there),
                )

    @contextmanager
    def _explained(self, name: str, revision: str | None) -> Iterator[None]:
        try:
            yield
        except (HfHubHTTPError, OfflineModeIsEnabled, httpx2.HTTPError, EntryNotFoundError) as why:
            raise explain(why, name, revision, self.endpoint) from why


def explain(why: Exception, name: str, revision: str | None, endpoint: str) -> NotPullable:
    """The sentence for an error of huggingface_hub."""
    token = "HF_TOKEN" if get_token() is None else "your token"
    page = f"{endpoint}/{name}"
    match why:
        case GatedRepoError():
            return NoAccess(
                f"{name} is gated: ask for access at {page}, then set HF_TOKEN to a token of that "
                "account (or log in with 'hf auth login')."
            )
        case RevisionNotFoundError():
            return NotPullable(f"{name} has no revision '{revision}'.")
        case DisabledRepoError():
            return NoAccess(f"The hub has disabled {name}.")
        case RepositoryNotFoundError() | EntryNotFoundError():
            if get_token() is None:
                return NoAccess(
                    f"There is no {page}, or it is private: then set HF_TOKEN (or log in with "
                    "'hf auth login')."
                )
            return NoAccess(f"There is no {page}, or {token} may not see it.")
        case OfflineModeIsEnabled():
            return NoHub("HF_HUB_OFFLINE is set, so nothing is downloaded. Unset it.")
        case HfHubHTTPError():
            return _of_status(why, name, endpoint)
        case _:
            return NoHub(f"{endpoint} cannot be reached ({_reason(why)}). Is there a network?")


def _of_status(why: HfHubHTTPError, name: str, endpoint: str) -> NotPullable:
    status = why.response.status_code
    match status:
        case 401 | 403:
            return NoAccess(
                f"The hub refuses access to {name} ({status}): set HF_TOKEN to a token that has it."
            )
        case 429:
            return NotPullable(f"{endpoint} asks for a pause (429). Run it again later.")
        case _:
            return NotPullable(f"{endpoint} answered with {status}. Run it again later.")


def _reason(why: Exception) -> str:
    text = str(why).strip().splitlines()
    return text[0] if text else type(why).__name__


def _files(siblings: Any) -> Iterator[HubFile]:
    for sibling in siblings:
        lfs = sibling.lfs
        size = sibling.size if sibling.size is not None else getattr(lfs, "size", None)
        if size is None:
            continue
        sha256 = None if lfs is None else lfs.sha256
        yield HubFile(sibling.rfilename, size, sha256, None if lfs else sibling.blob_id)


def _listener(note: Callable[[int], None], there: int) -> Any:
    """A class that huggingface_hub uses like its own progress bar."""

    class Listener:
        def __init__(self, *, initial: int = 0, **about: Any) -> None:
            # Zero if the server sent the whole file instead of the rest.
            note(initial - there)

        def __enter__(self) -> "Listener":
            return self

        def __exit__(self, *error: object) -> None:
            """There is nothing to close."""

        def update(self, count: float | None = 1) -> None:
            note(int(count or 0))

    return Listener
