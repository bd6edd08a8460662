"""How much memory models really took when they were loaded, for the next estimate."""

from collections.abc import Callable, Mapping
from typing import Any

from omlxd.library.catalog import CatalogModel, ModelKind

SIZES_FILE = "model-sizes.json"
MOST = 1000
"""Models to remember at most; the ones measured longest ago are forgotten."""


class MeasuredSizes:
    """Bytes by model and fingerprint."""

    def __init__(self, save: Callable[[Mapping[str, Any]], object] = lambda sizes: None) -> None:
        """``save`` is called with all sizes (``to_json``) when one is new."""
        self._save = save
        self._sizes: dict[str, tuple[str, int]] = {}

    def measured(self, model: CatalogModel) -> int | None:
        """What it took last time; None when exactly these files were never loaded."""
        fingerprint, size = self._sizes.get(model.id, ("", 0))
        return size if fingerprint == model.fingerprint else None

    def expected(self, model: CatalogModel) -> int:
        """Measured, otherwise computed from the files; vision parts are not loaded."""
        size = self.measured(model)
        if size is not None:
            return size
        unused = model.vision_bytes if model.kind is ModelKind.VISION_LANGUAGE else 0
        return model.weights_bytes - unused

    def note(self, model: CatalogModel, size: int, *, sure: bool = True) -> bool:
        """True when this is new. A size that is not ``sure`` never replaces a known size."""
        known = self.measured(model)
        if known == size or (known is not None and not sure):
            return False
        self._sizes.pop(model.id, None)
        self._sizes[model.id] = (model.fingerprint, size)
        while len(self._sizes) > MOST:
            del self._sizes[next(iter(self._sizes))]
        self._save(self.to_json())
        return True

    def to_json(self) -> dict[str, Any]:
        return {
            model: {"fingerprint": fingerprint, "bytes": size}
            for model, (fingerprint, size) in self._sizes.items()
        }

    def restore(self, stored: Any) -> None:
        """Read an output of ``to_json``; entries of another form are left out."""
        if not isinstance(stored, Mapping):
            return
        for model, entry in stored.items():
            match entry:
                case {"fingerprint": str(fingerprint), "bytes": int(size)} if size > 0:
                    self._sizes[str(model)] = (fingerprint, size)
                case _:
                    continue
