"""Chat messages of the wire as the text side takes them; refuses what is not built yet."""

from collections.abc import Sequence
from typing import Any, Final

from omlxd.api.openai.wire import Message
from omlxd.errors import InvalidRequest, UnsupportedParameter

_REFUSED: Final = ("tool_calls", "function_call", "audio", "images", "prefix", "partial")
"""The last two: go on with this message rather than answer it."""


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Raises InvalidRequest naming the part of the first message that cannot be taken.

    Contents keep their shape (text, list of parts, null).
    """
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Message, place: str) -> dict[str, Any]:
    if message.role in ("tool", "function"):
        raise UnsupportedParameter(
            f"{place}.role: messages of the role '{message.role}' are not supported.",
            param=f"{place}.role",
        )
    for name in _REFUSED:
        if (message.model_extra or {}).get(name):
            raise UnsupportedParameter(
                f"{place}.{name}: '{name}' in a message is not supported.", param=f"{place}.{name}"
            )
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(
            f"{place}.content: a {message.role} message needs a text or a list of text parts.",
            param=f"{place}.content",
        )
    # Templates of open models know no 'developer', OpenAI's newer word for 'system'.
    role = "system" if message.role == "developer" else message.role
    content: Any = message.content
    if isinstance(content, list):
        content = [part.model_dump(include={"type", "text"}) for part in content]
    return {"role": role, "content": content, "name": message.name}
