"""Checks one setting of a model that came by API, against its declaration."""

import json
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from omlxd.errors import InvalidRequest
from omlxd.model_settings.options import ModelSettings

LARGEST_NUMBER = 2**53
"""Beyond it JSON's numbers are no longer exact."""
_FIELDS: Mapping[str, Field[Any]] = {field.name: field for field in fields(ModelSettings)}
_HINTS = get_type_hints(ModelSettings)


def check_change(key: str, value: Any) -> Any:
    """``value`` as ``ModelSettings`` holds it; None resets. Raises InvalidRequest for ``key``."""
    if key != "default" and key not in _FIELDS:
        raise InvalidRequest(
            f"There is no setting '{key}'. Known are default, {', '.join(sorted(_FIELDS))}.",
            param=key,
        )
    if value is None:
        return None
    kind = bool if key == "default" else _kind(key)
    if kind is bool:
        return _flag(key, value)
    if kind in (int, float):
        return _number(key, value, kind)
    if get_origin(kind) is tuple:
        return _names(key, value)
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"'{key}' must be an object.", param=key)
    return _object(key, value)


def _kind(key: str) -> Any:
    """The annotation without ``None`` and unit."""
    kind = next(member for member in get_args(_HINTS[key]) if member is not type(None))
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"'{key}' must be true or false.", param=key)
    return value


def _number(key: str, value: Any, kind: type) -> int | float:
    whole = kind is int
    right = isinstance(value, int) or (not whole and isinstance(value, float))
    if isinstance(value, bool) or not right or not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
        noun = "a whole number" if whole else "a number"
        raise InvalidRequest(f"'{key}' must be {noun}.", param=key)
    bounds = _FIELDS[key].metadata
    low, high, above = bounds["low"], bounds["high"], bounds["above"]
    if low is not None and value < low:
        raise InvalidRequest(f"'{key}' must be at least {low:g}.", param=key)
    if above is not None and value <= above:
        raise InvalidRequest(f"'{key}' must be above {above:g}.", param=key)
    if high is not None and value > high:
        raise InvalidRequest(f"'{key}' must be at most {high:g}.", param=key)
    return int(value) if whole else float(value)


def _names(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise InvalidRequest(f"'{key}' must be a list of names.", param=key)
    try:
        _FIELDS[key].metadata["check"](value)
    except ValueError as error:
        raise InvalidRequest(f"'{key}' cannot be used: {error}.", param=key) from None
    return tuple(dict.fromkeys(value))


def _object(key: str, value: Mapping[Any, Any]) -> dict[str, Any]:
    """A copy of its own, of what JSON can hold."""
    copy: dict[str, Any] = json.loads(_encoded(key, dict(value)))
    return copy


def _encoded(key: str, value: Any) -> bytes:
    """As it is kept on disk and shown. Raises InvalidRequest for what cannot be either."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(
            f"'{key}' holds what cannot be kept: NaN, an infinite number, half a character, or "
            "too many levels.",
            param=key,
        ) from error
