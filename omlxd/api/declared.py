"""Declares, for the OpenAPI document, bodies that are read by whoever knows their keys."""

import types
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Annotated, Any, get_args, get_origin, get_type_hints

Schema = dict[str, Any]

_TYPES: Mapping[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
_BOUNDS = {"low": "minimum", "high": "maximum", "above": "exclusiveMinimum"}


def json_body(properties: Mapping[str, Schema]) -> Schema:
    """``openapi_extra`` of a route that takes a JSON object with some of these keys."""
    schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def field_schemas(options: type) -> dict[str, Schema]:
    """A schema for each field of the dataclass; every one may be null, which resets it."""
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
