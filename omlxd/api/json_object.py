"""Reads a body whose keys are known only to whoever it is for: a JSON object, strictly."""

import json
import sys
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
    except (RecursionError, ValueError) as error:
        raise unreadable(error) from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return value


def unreadable(cause: BaseException | None) -> InvalidRequest:
    """For JSON that Python's parser gave up on with ``cause``, though it may be right."""
    match cause:
        case UnicodeDecodeError():
            why = f"it is not UTF-8 at byte {cause.start}"
        case RecursionError():
            why = "it is nested too deeply"
        case ValueError():
            why = f"it has a whole number of more than {sys.get_int_max_str_digits()} digits"
        case _:
            return InvalidRequest("The request body could not be read as JSON.")
    return InvalidRequest(f"The request body could not be read as JSON: {why}.")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidRequest(f"Key '{key}' is there twice.", param=key)
        found[key] = value
    return found
