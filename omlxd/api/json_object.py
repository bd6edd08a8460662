"""Bodies that are JSON objects with keys that only their route knows: read, declared, made."""

import json
import sys
import types
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from omlxd.errors import InvalidRequest


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``. Raises InvalidRequest.

    NaN and infinity, which JSON does not have, are let through: the route checks the values.
    """
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
    """The error for a body that Python's JSON parser failed on with ``cause``."""
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


Schema = dict[str, Any]

_TYPES: Mapping[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
_BOUNDS = {"low": "minimum", "high": "maximum", "above": "exclusiveMinimum"}


def json_body(properties: Mapping[str, Schema]) -> Schema:
    """``openapi_extra`` of a route that takes a JSON object with some of these keys."""
    schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def field_schemas(options: type) -> dict[str, Schema]:
    """A schema for each field of the dataclass. Every field may be null, which resets it."""
    hints = get_type_hints(options, include_extras=True)
    return {
        field.name: {
            **_schema(hints[field.name]),
            **{
                name: bound
                for key, name in _BOUNDS.items()
                if (bound := field.metadata.get(key)) is not None
            },
            **({"description": text} if (text := field.metadata.get("help")) else {}),
        }
        for field in fields(options)
    }


def _schema(annotation: Any) -> Schema:
    kind = annotation
    if get_origin(kind) is types.UnionType:
        kind = next(member for member in get_args(kind) if member is not type(None))
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is tuple:
        return {"type": ["array", "null"], "items": {"type": "string"}}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [*(member.value for member in kind), None]}
    return {"type": [_TYPES.get(kind, "object"), "null"]}


def flat(view: Any) -> dict[str, Any]:
    """The fields of a dataclass, by name, without a copy of their values.

    It takes a seventh of the time of ``dataclasses.asdict``, and ``/status`` is asked often.
    """
    return {field.name: getattr(view, field.name) for field in fields(view)}
