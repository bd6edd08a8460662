"""Reads one root of models, whatever its layout; blocking, so it runs on a thread of its own.

Layouts: ``model/``, ``org/model/``, a root that itself is a model, and the Hugging Face cache
(``models--org--name/snapshots/<commit>``, the commit named in ``refs/main``).
"""

import errno
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from omlxd.backend.safetensors import BadFile
from omlxd.pool.catalog import (
    BrokenModel,
    CatalogModel,
    RootScan,
    RootState,
    RootStatus,
    Skipped,
)
from omlxd.pool.folder import Folder, HeaderCache, inspect, is_inside

PART = r"[A-Za-z0-9][\w.-]*"
MODEL_ID = re.compile(rf"{PART}(/{PART})?")
COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")
HUB = "models--"
HUB_OTHERS = ("datasets--", "spaces--")
LONGEST_SKIPPED = 200
"""Entries; a folder that holds anything but models must not fill the status."""


@dataclass(slots=True)
class Findings:
    models: list[CatalogModel] = field(default_factory=list)
    broken: list[BrokenModel] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def skip(self, name: str, reason: str) -> None:
        if len(self.skipped) < LONGEST_SKIPPED:
            self.skipped.append(Skipped(name, reason))


def scan_root(path: str, headers: HeaderCache) -> RootScan:
    """One look at ``path``. Never raises for what lies there."""
    root = os.path.realpath(path)
    findings = Findings()
    try:
        names = sorted(os.listdir(root))
        _scan_level(root, names, findings, headers)
    except OSError as error:
        return RootScan(_trouble(path, error))
    headers.forget_unseen()
    return RootScan(
        RootStatus(path, RootState.OK),
        tuple(findings.models),
        tuple(findings.broken),
        tuple(findings.skipped),
    )


def _trouble(path: str, error: OSError) -> RootStatus:
    match error.errno:
        case errno.ENOENT:
            detail = "The folder does not exist, or its volume is not mounted."
            return RootStatus(path, RootState.ABSENT, detail)
        case errno.EPERM:
            # Denied though the mode would allow it: on a Mac its privacy protection.
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


def _scan_level(root: str, names: list[str], findings: Findings, headers: HeaderCache) -> None:
    if "config.json" in names:
        model_id, confines = _lone_model(root)
        _scan_model(model_id, root, confines, findings, headers)
        return
    for name, folder in _folders(root, root, names, findings):
        _scan_child(root, name, folder, findings, headers)


def _lone_model(root: str) -> tuple[str, str]:
    """Id and confines of a root that itself is a model.

    A snapshot of the Hugging Face cache is made of links into the folder two levels up.
    """
    snapshots, commit = os.path.split(root)
    repository = os.path.dirname(snapshots)
    hub_name = os.path.basename(repository)
    inside_hub = os.path.basename(snapshots) == "snapshots" and COMMIT.fullmatch(commit)
    if inside_hub and hub_name.startswith(HUB):
        return _hub_id(hub_name), repository
    return os.path.basename(root), root


def _hub_id(folder_name: str) -> str:
    return folder_name.removeprefix(HUB).replace("--", "/")


def _folders(
    root: str, parent: str, names: list[str], findings: Findings
) -> Iterator[tuple[str, str]]:
    """(name relative to the root, resolved folder) of each folder that may be looked into."""
    for name in names:
        path = os.path.join(parent, name)
        if name.startswith(".") or not os.path.isdir(path):
            continue
        shown = os.path.relpath(path, root)
        real = os.path.realpath(path)
        if not is_inside(real, root):
            findings.skip(shown, "is a link that leaves the root")
        elif real == root or is_inside(parent, real):
            findings.skip(shown, "is a link to a folder above it")
        else:
            yield shown, real


def _scan_child(
    root: str, name: str, folder: str, findings: Findings, headers: HeaderCache
) -> None:
    try:
        names = sorted(os.listdir(folder))
        if _is_hub(name):
            _scan_hub(root, name, folder, findings, headers)
        elif _is_model(names):
            _scan_model(name, folder, root, findings, headers)
        else:
            _scan_organisation(root, name, folder, findings, headers)
    except OSError as error:
        findings.skip(name, f"cannot be read ({error.strerror})")


def _scan_organisation(
    root: str, name: str, folder: str, findings: Findings, headers: HeaderCache
) -> None:
    names = sorted(os.listdir(folder))
    found = False
    for child, path in _folders(root, folder, names, findings):
        found = True
        # The link of an organisation to another folder keeps the name it has here.
        model_id = f"{name}/{os.path.basename(child)}"
        try:
            children = os.listdir(path)
            if _is_hub(child):
                _scan_hub(root, os.path.basename(child), path, findings, headers)
            elif _is_model(children):
                _scan_model(model_id, path, root, findings, headers)
            else:
                findings.skip(model_id, "is no model: it has no config.json")
        except OSError as error:
            findings.skip(model_id, f"cannot be read ({error.strerror})")
    if not found:
        findings.skip(name, "is no model: it has no config.json")


def _is_model(names: list[str]) -> bool:
    return "config.json" in names or any(name.endswith(".safetensors") for name in names)


def _is_hub(name: str) -> bool:
    return os.path.basename(name).startswith((HUB, *HUB_OTHERS))


def _scan_hub(root: str, name: str, folder: str, findings: Findings, headers: HeaderCache) -> None:
    base = os.path.basename(name)
    if not base.startswith(HUB):
        return
    model_id = _hub_id(base)
    try:
        snapshot = _snapshot(root, folder)
    except BadFile as bad:
        findings.skip(model_id, f"{bad.file} {bad.reason}")
        return
    _scan_model(model_id, snapshot, root, findings, headers)


def _snapshot(root: str, folder: str) -> str:
    """The folder of the commit in ``refs/main``, or of the only one. Raises BadFile."""
    commit = _main_commit(root, folder)
    snapshots = os.path.join(folder, "snapshots")
    if commit is None:
        try:
            commits = [name for name in os.listdir(snapshots) if COMMIT.fullmatch(name)]
        except FileNotFoundError:
            raise BadFile("snapshots", "is missing: the download is not complete") from None
        if len(commits) != 1:
            raise BadFile("refs/main", f"is missing, and there are {len(commits)} snapshots")
        commit = commits[0]
    path = os.path.realpath(os.path.join(snapshots, commit))
    if not is_inside(path, root):
        raise BadFile(f"snapshots/{commit}", "is a link that leaves the root")
    if not os.path.isdir(path):
        raise BadFile(f"snapshots/{commit}", "is missing: the download is not complete")
    return path


def _main_commit(root: str, folder: str) -> str | None:
    path = os.path.realpath(os.path.join(folder, "refs", "main"))
    if not is_inside(path, root):
        raise BadFile("refs/main", "is a link that leaves the root")
    if not os.path.isfile(path):
        return None
    with open(path, encoding="ascii", errors="replace") as file:
        commit = file.read(100).strip()
    if not COMMIT.fullmatch(commit):
        raise BadFile("refs/main", "does not name a commit")
    return commit


def _scan_model(
    model_id: str, path: str, root: str, findings: Findings, headers: HeaderCache
) -> None:
    if not MODEL_ID.fullmatch(model_id):
        reason = "has a name with other characters than letters, digits, '.', '_' and '-'"
        findings.skip(model_id, reason)
        return
    folder = Folder(path, root)
    other = _no_model_of_its_own(folder.names)
    if other is not None:
        findings.skip(model_id, other)
        return
    try:
        findings.models.append(inspect(model_id, folder, headers))
    except BadFile as bad:
        findings.broken.append(BrokenModel(model_id, bad.file, bad.reason))
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        findings.broken.append(BrokenModel(model_id, "config.json", reason))


def _no_model_of_its_own(names: list[str]) -> str | None:
    if "adapter_config.json" in names and "config.json" not in names:
        return "is an adapter without its base model"
    if "model_index.json" in names:
        return "is an image generation pipeline"
    if "config.json" not in names:
        return "is no model: it has no config.json"
    return None
