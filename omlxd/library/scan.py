"""Reads one folder of models in any known layout. It blocks, so it runs on its own thread.

Layouts: ``model/``, ``org/model/``, a root that itself is a model, and the Hugging Face cache
(``models--org--name/snapshots/<commit>``, the commit named in ``refs/main``) or one repository
or snapshot of it.
"""

import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from omlxd.backend.safetensors import BadFile, Missing, Unreadable
from omlxd.library.catalog import (
    BrokenModel,
    CatalogModel,
    RootScan,
    RootState,
    RootStatus,
    Skipped,
    is_inside,
)
from omlxd.library.folder import Folder, HeaderCache, inspect
from omlxd.printable import printable

PART = r"[A-Za-z0-9][\w.-]*"
MODEL_ID = re.compile(rf"{PART}(/{PART})?")
LONGEST_SKIPPED = 200
"""Entries; a folder full of other files must not fill the status."""
COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")
HUB = "models--"
HUB_OTHERS = ("datasets--", "spaces--")
NO_MODEL = "is no model: it has no config.json"


def scan_root(path: str, headers: HeaderCache) -> RootScan:
    """Read ``path`` once. Its contents never make this raise."""
    root = os.path.realpath(path)
    reader = _RootReader(root, headers)
    try:
        reader.read()
    except OSError as error:
        return RootScan(_trouble(printable(path), error))
    headers.forget_unseen()
    return RootScan(
        RootStatus(printable(path), RootState.OK),
        tuple(reader.models),
        tuple(reader.broken),
        tuple(reader.skipped),
        tuple(reader.unread),
    )


def _trouble(path: str, error: OSError) -> RootStatus:
    match error.errno:
        case errno.ENOENT:
            detail = "There is no such folder yet: put a model there, or mount the volume it is on."
            return RootStatus(path, RootState.ABSENT, detail)
        case errno.EPERM:
            # The mode allows it, so on a Mac the privacy protection refused it.
            detail = (
                "Access is denied. On a Mac, allow it in System Settings > Privacy & Security "
                "> Files & Folders (or Full Disk Access), for the program "
                f"{sys.executable}."
            )
            return RootStatus(path, RootState.DENIED, detail)
        case errno.EACCES:
            detail = "Access is denied; check the owner and the permissions of the folder."
            return RootStatus(path, RootState.DENIED, detail)
        case errno.ENOTDIR:
            return RootStatus(path, RootState.FAILED, "This is not a folder.")
        case _:
            return RootStatus(path, RootState.FAILED, f"Reading failed: {error.strerror}.")


@dataclass(slots=True)
class _RootReader:
    """Walks the resolved folder ``root`` and collects what it finds."""

    root: str
    headers: HeaderCache
    models: list[CatalogModel] = field(default_factory=list)
    broken: list[BrokenModel] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Raises OSError when the root itself cannot be listed."""
        names = sorted(os.listdir(self.root))
        if "config.json" in names:
            model_id, confines = _lone_model(self.root)
            self._read_model(model_id, self.root, confines)
            return
        # Any folder may have such a name, so its content must fit as well.
        if _is_hub(self.root) and {"blobs", "refs", "snapshots"} & set(names):
            self._read_repository(self.root, self.root)
            return
        for name, folder in self._folders(self.root, names):
            self._read_child(name, folder)

    # What was found

    def _skip(self, name: str, reason: str) -> None:
        if len(self.skipped) < LONGEST_SKIPPED:
            self.skipped.append(Skipped(printable(name), printable(reason)))

    def _fail(self, name: str, path: str, error: OSError) -> None:
        """The folder ``path``, called ``name``, could not be read."""
        self._skip(name, f"cannot be read ({error.strerror})")
        if not isinstance(error, FileNotFoundError):
            self.unread.append(path)

    def _join(self, other: "_RootReader") -> None:
        self.models += other.models
        self.broken += other.broken
        for skipped in other.skipped:
            self._skip(skipped.name, skipped.reason)
        self.unread += other.unread

    # Folders

    def _folders(self, parent: str, names: list[str]) -> Iterator[tuple[str, str]]:
        """(name relative to the root, resolved folder) of each folder that may be read."""
        for name in names:
            path = os.path.join(parent, name)
            if name.startswith("."):
                continue
            shown = os.path.relpath(path, self.root)
            real = os.path.realpath(path)
            try:
                if not stat.S_ISDIR(os.stat(path).st_mode):
                    continue
            except FileNotFoundError:
                continue
            except OSError as error:
                self._fail(shown, real, error)
                continue
            if not is_inside(real, self.root):
                self._skip(shown, "is a link that leaves the root")
            elif real == self.root or is_inside(parent, real):
                self._skip(shown, "is a link to a folder above it")
            else:
                yield shown, real

    def _read_child(self, name: str, folder: str) -> None:
        try:
            names = sorted(os.listdir(folder))
            if _is_hub(name):
                self._read_repository(name, folder)
            elif _is_model(names):
                self._read_model(name, folder)
            else:
                self._read_organisation(name, folder, names)
        except OSError as error:
            self._fail(name, folder, error)

    def _read_organisation(self, name: str, folder: str, names: list[str]) -> None:
        found = False
        for child, path in self._folders(folder, names):
            found = True
            # If an organisation is a link to another folder, it has the name of the link.
            model_id = f"{name}/{os.path.basename(child)}"
            try:
                children = os.listdir(path)
                if _is_hub(child):
                    self._read_repository(os.path.basename(child), path)
                elif _is_model(children):
                    self._read_model(model_id, path)
                else:
                    self._skip(model_id, NO_MODEL)
            except OSError as error:
                self._fail(model_id, path, error)
        if not found:
            self._skip(name, NO_MODEL)

    def _read_model(self, model_id: str, path: str, confines: str | None = None) -> bool:
        """True if a part of the model is missing. Its files must be inside ``confines`` (the root).

        Raises OSError when the folder cannot be listed.
        """
        if not MODEL_ID.fullmatch(model_id):
            reason = "has a name with other characters than letters, digits, '.', '_' and '-'"
            self._skip(model_id, reason)
            return False
        folder = Folder(path, confines or self.root)
        other = _other_kind(folder.names)
        if other is not None:
            self._skip(model_id, other)
            return "config.json" not in folder.names
        try:
            self.models.append(inspect(model_id, folder, self.headers))
        except BadFile as bad:
            self.broken.append(BrokenModel(model_id, bad.file, bad.reason))
            if isinstance(bad, Unreadable):
                self.unread.append(path)
            return isinstance(bad, Missing)
        except OSError as error:
            reason = f"cannot be read ({error.strerror})"
            self.broken.append(BrokenModel(model_id, "config.json", reason))
            self.unread.append(path)
        return False

    # The Hugging Face cache

    def _read_repository(self, name: str, folder: str) -> None:
        base = os.path.basename(name)
        if not base.startswith(HUB):
            return
        model_id = _hub_id(base)
        try:
            commit = _main_commit(self.root, folder) or _only_commit(folder)
        except BadFile as bad:
            self._skip(model_id, f"{bad.file} {bad.reason}")
            return
        first = _RootReader(self.root, self.headers)
        if first._read_commit(model_id, folder, commit):
            # The hub names a commit before it downloads it, and keeps the previous one.
            for other in _commits(folder, but=commit):
                second = _RootReader(self.root, self.headers)
                second._read_commit(model_id, folder, other)
                if second.models:
                    second._skip(model_id, f"is served as of {other}: {commit} is not complete")
                    self._join(second)
                    return
        self._join(first)

    def _read_commit(self, model_id: str, folder: str, commit: str) -> bool:
        """True if a part of it is missing."""
        try:
            snapshot = _snapshot(self.root, folder, commit)
        except BadFile as bad:
            self._skip(model_id, f"{bad.file} {bad.reason}")
            return isinstance(bad, Missing)
        return self._read_model(model_id, snapshot)


def _lone_model(root: str) -> tuple[str, str]:
    """For a root that itself is a model: its id, and the folder that must contain its files.

    A snapshot of the Hugging Face cache is made of links into the folder two levels up.
    """
    snapshots, commit = os.path.split(root)
    repository = os.path.dirname(snapshots)
    hub_name = os.path.basename(repository)
    inside_hub = os.path.basename(snapshots) == "snapshots" and COMMIT.fullmatch(commit)
    if inside_hub and hub_name.startswith(HUB):
        return _hub_id(hub_name), repository
    return os.path.basename(root), root


def _is_model(names: list[str]) -> bool:
    return "config.json" in names or any(name.endswith(".safetensors") for name in names)


def _other_kind(names: list[str]) -> str | None:
    """What the folder is, if it is not a model that can be served by itself."""
    if "adapter_config.json" in names and "config.json" not in names:
        return "is an adapter without its base model"
    if "model_index.json" in names:
        return "is an image generation pipeline"
    return NO_MODEL if "config.json" not in names else None


def _hub_id(folder_name: str) -> str:
    return folder_name.removeprefix(HUB).replace("--", "/")


def _is_hub(name: str) -> bool:
    return os.path.basename(name).startswith((HUB, *HUB_OTHERS))


def _commits(folder: str, but: str | None = None) -> list[str]:
    """Commits, newest first. Raises FileNotFoundError when there were never any."""
    snapshots = os.path.join(folder, "snapshots")
    commits = [name for name in os.listdir(snapshots) if COMMIT.fullmatch(name) and name != but]
    return sorted(commits, key=lambda c: -os.lstat(os.path.join(snapshots, c)).st_mtime)


def _only_commit(folder: str) -> str:
    try:
        commits = _commits(folder)
    except FileNotFoundError:
        raise Missing("snapshots", "is missing: the download is not complete") from None
    if len(commits) != 1:
        raise BadFile("refs/main", f"is missing, and there are {len(commits)} snapshots")
    return commits[0]


def _snapshot(root: str, folder: str, commit: str) -> str:
    """The folder of the commit. Raises BadFile."""
    path = os.path.realpath(os.path.join(folder, "snapshots", commit))
    if not is_inside(path, root):
        raise BadFile(f"snapshots/{commit}", "is a link that leaves the root")
    if not os.path.isdir(path):
        raise Missing(f"snapshots/{commit}", "is missing: the download is not complete")
    return path


def _main_commit(root: str, folder: str) -> str | None:
    path = os.path.realpath(os.path.join(folder, "refs", "main"))
    if not is_inside(path, root):
        raise BadFile("refs/main", "is a link that leaves the root")
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            commit = file.read(100).strip()
    except (FileNotFoundError, IsADirectoryError):
        return None
    if not COMMIT.fullmatch(commit):
        raise BadFile("refs/main", "does not name a commit")
    return commit
