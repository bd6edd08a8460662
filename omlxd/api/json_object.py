"""Reads a body whose keys are known only to whoever it is for: a JSON object, strictly."""

import json
from typing import Any

from omlxd.errors import InvalidRequest


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``. Numbers that JSON has no words for (NaN) are left to whoever
    knows the key. Raises InvalidRequest."""
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_without_doubles)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"The body is not valid JSON: {error.msg} at character {error.pos}."
        ) from None
    except (UnicodeDecodeError, RecursionError, ValueError):
        raise InvalidRequest(
            "The request body could not be read as JSON: it must be UTF-8, not nested too deeply, "
            "and its numbers of a sane length."
        ) from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return value


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidRequest(f"Key '{key}' is there twice.", param=key)
        found[key] = value
    return found
