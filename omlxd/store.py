"""What the daemon remembers by itself: JSON files that are whole or absent, never half written."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

MODE = 0o600


class Damaged(Exception):
    """A file that did not read as JSON; it was moved to ``aside``, so nothing is lost."""

    def __init__(self, path: Path, aside: Path, why: str) -> None:
        super().__init__(f"{path} is damaged ({why}); it was moved to {aside}")
        self.path = path
        self.aside = aside


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` with ``value`` in one step, readable by its owner only.

    The folder must exist. Raises OSError; the old file is then untouched.
    """
    body = json.dumps(value, indent=2, allow_nan=False).encode() + b"\n"
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), MODE)
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    _sync_folder(path.parent)


def read_json(path: Path) -> Any | None:
    """The value in ``path``; None when there is no such file. Raises Damaged, OSError."""
    try:
        body = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return json.loads(body)
    except ValueError as error:
        aside = _free_name(path)
        os.replace(path, aside)
        raise Damaged(path, aside, str(error)) from None


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
