"""Models in the layout of the Hugging Face cache: snapshots, and the commit named in refs/main."""

import os
import re

from omlxd.backend.safetensors import BadFile, Missing
from omlxd.library.catalog import is_inside
from omlxd.library.findings import Findings, scan_model
from omlxd.library.folder import HeaderCache

COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")
HUB = "models--"
HUB_OTHERS = ("datasets--", "spaces--")


def hub_id(folder_name: str) -> str:
    return folder_name.removeprefix(HUB).replace("--", "/")


def is_hub(name: str) -> bool:
    return os.path.basename(name).startswith((HUB, *HUB_OTHERS))


def scan_hub(root: str, name: str, folder: str, findings: Findings, headers: HeaderCache) -> None:
    base = os.path.basename(name)
    if not base.startswith(HUB):
        return
    model_id = hub_id(base)
    try:
        main = _main_commit(root, folder)
        commit = _only_commit(folder) if main is None else main
    except BadFile as bad:
        findings.skip(model_id, f"{bad.file} {bad.reason}")
        return
    first = Findings()
    if _scan_commit(model_id, root, folder, commit, first, headers):
        # The hub names a commit before it downloads it, and keeps the one before.
        for other in _commits(folder, but=commit):
            second = Findings()
            _scan_commit(model_id, root, folder, other, second, headers)
            if second.models:
                second.skip(model_id, f"is served as of {other}: {commit} is not complete")
                findings.join(second)
                return
    findings.join(first)


def _scan_commit(
    model_id: str,
    root: str,
    folder: str,
    commit: str,
    findings: Findings,
    headers: HeaderCache,
) -> bool:
    """Whether a part of it is missing."""
    try:
        snapshot = _snapshot(root, folder, commit)
    except BadFile as bad:
        findings.skip(model_id, f"{bad.file} {bad.reason}")
        return isinstance(bad, Missing)
    return scan_model(model_id, snapshot, root, findings, headers)


def _commits(folder: str, but: str | None = None) -> list[str]:
    """The newest first. Raises FileNotFoundError when there were never any."""
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
    snapshots = os.path.join(folder, "snapshots")
    path = os.path.realpath(os.path.join(snapshots, commit))
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
