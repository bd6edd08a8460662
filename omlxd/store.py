"""Small JSON files that survive a crash: written whole or not at all, never silently lost."""

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

LARGEST = 16 * 1024 * 1024
"""Bytes; what the daemon remembers is small, so a larger file is not one of its own."""


class DamagedFile(Exception):
    """A state file that cannot be understood; it was moved to ``aside``, None if not even that.

    The next ``read_json`` finds nothing, so its owner may go on with its defaults.
    """

    def __init__(self, path: Path, aside: Path | None, reason: str) -> None:
        kept = f"; it was kept as {aside.name}" if aside is not None else ""
        super().__init__(f"{path.name} {reason}{kept}")
        self.path = path
        self.aside = aside
        self.reason = reason


def read_json(path: Path) -> Any | None:
    """What was written to ``path``; None when there is no such file.

    Raises DamagedFile when it is there and is not JSON, and OSError when it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        return None
    if len(data) > LARGEST:
        raise DamagedFile(path, _move_aside(path), "is far too large")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(path, _move_aside(path), "is not valid JSON") from error


def write_json(path: Path, value: Any) -> None:
    """Put ``value`` in place of what ``path`` held; readable by its owner only.

    After a crash the file holds the old value or the new one. Raises OSError (the old value
    is still there), ValueError or TypeError for what JSON cannot hold.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp makes the file with mode 0600 and follows no link.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def sweep(folder: Path) -> int:
    """Remove what interrupted writes left behind; how many files. Called at start."""
    left = list(folder.glob(".*.*.tmp"))
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)


def _move_aside(path: Path) -> Path | None:
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        os.replace(path, aside)
    except OSError:
        return None
    return aside


def _sync_folder(folder: Path) -> None:
    """So that the new name survives a power loss; some volumes refuse, and lose only that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
