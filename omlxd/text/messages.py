"""Chat messages as every template can take them: content a string, nothing null."""

from collections.abc import Mapping, Sequence
from typing import Any

from omlxd.errors import InvalidRequest

_BETWEEN_PARTS = "\n"
"""Clients send blocks (a task, a file, an environment) as parts: glued words would be wrong."""


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``messages`` with string contents: text parts joined by a line break, null as "".

    Other fields stay as they are, in their order; null ones are left out. Raises
    ``InvalidRequest`` naming the field that is neither.
    """
    return [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]


def count_characters(value: Any) -> int:
    """Characters of all strings in ``value``, keys included."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(count_characters(key) + count_characters(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return sum(count_characters(item) for item in value)
    return 0


def _plain(message: Mapping[str, Any], place: str) -> dict[str, Any]:
    plain = {key: value for key, value in message.items() if value is not None}
    plain["content"] = _text(message.get("content"), f"{place}.content")
    return plain


def _text(content: Any, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return _BETWEEN_PARTS.join(_part(p, f"{place}[{i}]") for i, p in enumerate(content))
    raise InvalidRequest(f"{place} must be a string, a list of text parts, or null.", param=place)


def _part(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise InvalidRequest(
            f"{place} is of type {kind!r}; only parts of type 'text' are supported.", param=place
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{place}.text must be a string.", param=f"{place}.text")
    return text
