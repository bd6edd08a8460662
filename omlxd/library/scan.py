"""Reads one root of models, whatever its layout; blocking, so it runs on a thread of its own.

Layouts: ``model/``, ``org/model/``, a root that itself is a model, and the Hugging Face cache
(``models--org--name/snapshots/<commit>``, the commit named in ``refs/main``) or one repository
or snapshot of it.
"""

import errno
import os
import stat
import sys
from collections.abc import Iterator

from omlxd.library.catalog import RootScan, RootState, RootStatus, is_inside
from omlxd.library.findings import Findings, scan_model
from omlxd.library.folder import HeaderCache
from omlxd.library.hub_cache import COMMIT, HUB, hub_id, is_hub, scan_hub
from omlxd.printable import printable


def scan_root(path: str, headers: HeaderCache) -> RootScan:
    """One look at ``path``. Never raises for what lies there."""
    root = os.path.realpath(path)
    findings = Findings()
    try:
        names = sorted(os.listdir(root))
        _scan_level(root, names, findings, headers)
    except OSError as error:
        return RootScan(_trouble(printable(path), error))
    headers.forget_unseen()
    return RootScan(
        RootStatus(printable(path), RootState.OK),
        tuple(findings.models),
        tuple(findings.broken),
        tuple(findings.skipped),
        tuple(findings.unread),
    )


def _trouble(path: str, error: OSError) -> RootStatus:
    match error.errno:
        case errno.ENOENT:
            detail = "There is no such folder yet: put a model there, or mount the volume it is on."
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
        scan_model(model_id, root, confines, findings, headers)
        return
    # A name alone may be anybody's.
    if is_hub(root) and {"blobs", "refs", "snapshots"} & set(names):
        scan_hub(root, root, root, findings, headers)
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
        return hub_id(hub_name), repository
    return os.path.basename(root), root


def _folders(
    root: str, parent: str, names: list[str], findings: Findings
) -> Iterator[tuple[str, str]]:
    """(name relative to the root, resolved folder) of each folder that may be looked into."""
    for name in names:
        path = os.path.join(parent, name)
        if name.startswith("."):
            continue
        shown = os.path.relpath(path, root)
        real = os.path.realpath(path)
        try:
            if not stat.S_ISDIR(os.stat(path).st_mode):
                continue
        except FileNotFoundError:
            continue
        except OSError as error:
            findings.fail(shown, real, error)
            continue
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
        if is_hub(name):
            scan_hub(root, name, folder, findings, headers)
        elif _is_model(names):
            scan_model(name, folder, root, findings, headers)
        else:
            _scan_organisation(root, name, folder, findings, headers)
    except OSError as error:
        findings.fail(name, folder, error)


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
            if is_hub(child):
                scan_hub(root, os.path.basename(child), path, findings, headers)
            elif _is_model(children):
                scan_model(model_id, path, root, findings, headers)
            else:
                findings.skip(model_id, "is no model: it has no config.json")
        except OSError as error:
            findings.fail(model_id, path, error)
    if not found:
        findings.skip(name, "is no model: it has no config.json")


def _is_model(names: list[str]) -> bool:
    return "config.json" in names or any(name.endswith(".safetensors") for name in names)
