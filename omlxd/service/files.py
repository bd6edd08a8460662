"""Small files of the service: written whole or not at all, read with damage told apart."""

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


def write_atomically(path: Path, content: bytes, mode: int) -> None:
    """Replace ``path`` by ``content``; a reader sees the old or the new file, never a part.

    Raises OSError; ``path`` is then as it was.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(value, indent=1, sort_keys=True) + "\n"
    write_atomically(path, text.encode(), PRIVATE_FILE)


def read_json(path: Path) -> Mapping[str, Any] | None:
    """The object in ``path``; None when there is none or it cannot be understood."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def make_private_folder(path: Path) -> None:
    """``path`` as a folder that only its owner enters; an existing one keeps its mode."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
