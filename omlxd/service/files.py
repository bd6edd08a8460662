"""Small files of the service: written whole or not at all, read with damage told apart."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omlxd.store import write_atomically

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


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
