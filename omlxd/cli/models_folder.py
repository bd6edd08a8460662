"""Deletes models from the folder that is our own, and from nowhere else."""

import contextlib
import os
import re
import shutil
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


class NotOurs(Exception):
    """It may not be deleted; the text is for the user."""


def find_own(models: Path, model_id: str) -> Path:
    """The folder of ``model_id`` below ``models``. Raises NotOurs."""
    if not _ID.fullmatch(model_id):
        raise NotOurs(f"'{model_id}' is not the id of a model; `omlxd models list` shows them.")
    folder = models / model_id
    if not os.path.lexists(folder):
        raise NotOurs(
            f"There is no {folder}. Models in other folders, such as the Hugging Face cache, are "
            "deleted where they are."
        )
    real_root = models.resolve()
    for part in (folder.parent, folder):
        if part != models and part.is_symlink():
            raise NotOurs(f"{part} is a link to elsewhere. Delete it by hand.")
    if not folder.is_dir() or real_root not in folder.resolve().parents:
        raise NotOurs(f"{folder} is not a folder of its own. Delete it by hand.")
    if not (folder / "config.json").exists() and any(p.is_dir() for p in folder.iterdir()):
        raise NotOurs(f"{folder} is no model but holds others. Name one of them.")
    return folder


def size_of(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def delete(models: Path, folder: Path) -> None:
    """First out of its name, so that what is left of it is never taken for a model."""
    doomed = models / f".deleted-{os.getpid()}-{folder.name}"
    folder.rename(doomed)
    shutil.rmtree(doomed)
    if folder.parent != models:
        with contextlib.suppress(OSError):  # other models of the same organisation
            folder.parent.rmdir()
