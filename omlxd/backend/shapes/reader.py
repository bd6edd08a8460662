"""Reads numbers and lists out of a config.json that may hold anything."""

from collections.abc import Mapping, Sequence
from typing import Any

LARGEST = 10**9
MOST_LAYERS = 10_000


class NotUnderstood(Exception):
    """The config does not say what an estimate needs; the text is the reason."""


class Config:
    """One table of a config.json. A key that is null counts as absent, as in mlx-lm."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table

    def has(self, key: str) -> bool:
        return self._table.get(key) is not None

    def get(self, key: str) -> Any:
        return self._table.get(key)

    def number(self, key: str, default: int | None = None, *, zero: bool = False) -> int:
        """A whole number above zero (or zero where allowed). Raises NotUnderstood."""
        value = self._table.get(key)
        if value is None:
            value = default
        if value is None:
            raise NotUnderstood(f"config.json has no {key}")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        low = 0 if zero else 1
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= LARGEST:
            raise NotUnderstood(f"config.json has no usable {key}")
        return value

    def names(self, key: str, count: int | None = None) -> Sequence[str]:
        """A list of texts, of at least ``count`` entries, cut to them. Raises NotUnderstood."""
        value = self._table.get(key)
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise NotUnderstood(f"config.json has no usable {key}")
        if len(value) > MOST_LAYERS or (count is not None and len(value) < count):
            raise NotUnderstood(f"config.json has no usable {key}")
        return value if count is None else value[:count]

    def numbers(self, key: str) -> Sequence[int]:
        """Raises NotUnderstood."""
        value = self._table.get(key)
        if not isinstance(value, list | tuple) or len(value) > MOST_LAYERS:
            raise NotUnderstood(f"config.json has no usable {key}")
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise NotUnderstood(f"config.json has no usable {key}")
        return value

    def largest(self, key: str, default: int) -> int:
        """A number, or the largest of a list with one a layer. Raises NotUnderstood."""
        if isinstance(self._table.get(key), list | tuple):
            return max(self.numbers(key), default=default)
        return self.number(key, default, zero=True)

    def table(self, key: str) -> "Config":
        """Raises NotUnderstood."""
        value = self._table.get(key)
        if not isinstance(value, Mapping):
            raise NotUnderstood(f"config.json has no {key}")
        return Config(value)

    def layers(self, key: str = "num_hidden_layers") -> int:
        """Raises NotUnderstood."""
        count = self.number(key)
        if count > MOST_LAYERS:
            raise NotUnderstood(f"config.json claims {count} layers")
        return count
