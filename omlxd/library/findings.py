"""What one look at a root finds, and the look at one folder that should be a model."""

import re
from dataclasses import dataclass, field

from omlxd.backend.safetensors import BadFile, Missing, Unreadable
from omlxd.library.catalog import BrokenModel, CatalogModel, Skipped
from omlxd.library.folder import Folder, HeaderCache, inspect
from omlxd.printable import printable

PART = r"[A-Za-z0-9][\w.-]*"
MODEL_ID = re.compile(rf"{PART}(/{PART})?")
LONGEST_SKIPPED = 200
"""Entries; a folder that holds anything but models must not fill the status."""


@dataclass(slots=True)
class Findings:
    models: list[CatalogModel] = field(default_factory=list)
    broken: list[BrokenModel] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def skip(self, name: str, reason: str) -> None:
        if len(self.skipped) < LONGEST_SKIPPED:
            self.skipped.append(Skipped(printable(name), printable(reason)))

    def fail(self, name: str, path: str, error: OSError) -> None:
        """The folder ``path``, called ``name``, could not be read."""
        self.skip(name, f"cannot be read ({error.strerror})")
        if not isinstance(error, FileNotFoundError):
            self.unread.append(path)

    def join(self, other: "Findings") -> None:
        self.models += other.models
        self.broken += other.broken
        for skipped in other.skipped:
            self.skip(skipped.name, skipped.reason)
        self.unread += other.unread


def scan_model(
    model_id: str, path: str, root: str, findings: Findings, headers: HeaderCache
) -> bool:
    """Whether a part of it is missing. Raises OSError when the folder cannot be listed."""
    if not MODEL_ID.fullmatch(model_id):
        reason = "has a name with other characters than letters, digits, '.', '_' and '-'"
        findings.skip(model_id, reason)
        return False
    folder = Folder(path, root)
    other = _no_model_of_its_own(folder.names)
    if other is not None:
        findings.skip(model_id, other)
        return "config.json" not in folder.names
    try:
        findings.models.append(inspect(model_id, folder, headers))
    except BadFile as bad:
        findings.broken.append(BrokenModel(model_id, bad.file, bad.reason))
        if isinstance(bad, Unreadable):
            findings.unread.append(path)
        return isinstance(bad, Missing)
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        findings.broken.append(BrokenModel(model_id, "config.json", reason))
        findings.unread.append(path)
    return False


def _no_model_of_its_own(names: list[str]) -> str | None:
    if "adapter_config.json" in names and "config.json" not in names:
        return "is an adapter without its base model"
    if "model_index.json" in names:
        return "is an image generation pipeline"
    if "config.json" not in names:
        return "is no model: it has no config.json"
    return None
