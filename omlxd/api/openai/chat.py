"""POST /v1/chat/completions."""

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request
from pydantic import Discriminator, Field, Tag, field_validator
from starlette.responses import Response

from omlxd.api.generate import Output, respond
from omlxd.api.generation_parameters import find_model, make_request
from omlxd.api.openai.fields import (
    MOST_LOGPROBS,
    GenerationFields,
    NoBoolean,
    WireModel,
    text_or_list,
)
from omlxd.api.openai.unsupported import CHAT, refuse_unsupported
from omlxd.api.openai.writer import CompletionsWriter, chat_logprobs
from omlxd.api.services import Services
from omlxd.engine.registry import RunningRequest
from omlxd.engine.request import GenerationRequest
from omlxd.engine.text_events import GenerationEnd, TextDelta
from omlxd.errors import InvalidRequest, UnsupportedParameter

MOST_PIECES = 10_000
"""Messages and parts of messages in one request. A million of them would block the event loop for
seconds."""

_REFUSED: Final = ("tool_calls", "function_call", "audio", "images", "prefix", "partial")
"""Fields of a message. The last two ask to continue this message rather than to answer it."""


class Part(WireModel):
    type: str
    text: str | None = None


Content = Annotated[
    Annotated[str | None, Tag("<text>")] | Annotated[list[Part], Tag("<list>")],
    Discriminator(text_or_list),
]


class Message(WireModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content = None
    name: str | None = None


class ChatRequest(GenerationFields):
    messages: Annotated[list[Message], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MOST_LOGPROBS), NoBoolean] = None

    @field_validator("messages", mode="before")
    @classmethod
    def _not_too_many(cls, value: Any) -> Any:
        # Count them before pydantic checks each one, which takes long.
        if isinstance(value, list) and _pieces(value) > MOST_PIECES:
            raise ValueError(f"at most {MOST_PIECES} messages and content parts are taken")
        return value


def _pieces(messages: list[Any]) -> int:
    contents = (message.get("content") for message in messages if isinstance(message, dict))
    return len(messages) + sum(len(parts) for parts in contents if isinstance(parts, list))


def chat_routes(services: Services) -> APIRouter:
    routes = APIRouter(tags=["openai"])

    @routes.post("/v1/chat/completions")
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        services.refuse_unless_ready()
        refuse_unsupported(body.model_extra or {}, CHAT)
        if body.top_logprobs and not body.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
        messages = template_messages(body.messages)
        writer = ChatWriter(
            f"chatcmpl-{secrets.token_hex(12)}",
            int(services.identity.unix_clock()),
            logprobs=bool(body.logprobs),
            usage=body.wants_usage,
        )

        async def read(running: RunningRequest) -> GenerationRequest:
            model, tokenizer = await find_model(services, body.model, running)
            settings = services.library.settings.of(model.id)
            prompt = await services.prompts.chat_prompt(
                tokenizer,
                messages,
                model=model.id,
                template_arguments=settings.template_arguments or {},
            )
            top = (body.top_logprobs or 0) if body.logprobs else None
            parameters = body.parameters(top_logprobs=top, continues=False)
            prompts = {"messages": prompt}
            return make_request(services, writer.id, model, tokenizer, prompts, parameters)

        return await respond(services, request, read, writer, stream=bool(body.stream))

    return routes


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages for the chat template. Each content keeps its shape: text, list of parts or null.

    Raises InvalidRequest with the part of the first message that is not supported.
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
    # 'developer' is OpenAI's newer word for 'system'. Templates of open models do not know it.
    role = "system" if message.role == "developer" else message.role
    content: Any = message.content
    if isinstance(content, list):
        content = [part.model_dump(include={"type", "text"}) for part in content]
    return {"role": role, "content": content, "name": message.name}


class ChatWriter(CompletionsWriter):
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def begin(self, request: GenerationRequest) -> None:
        super().begin(request)
        self._opened: set[int] = set()

    def event(self, index: int, event: TextDelta | GenerationEnd) -> bytes:
        """The first chunk of a choice has the role and no text."""
        if index in self._opened:
            return super().event(index, event)
        self._opened.add(index)
        role = self._chunk(_choice(index, {"role": "assistant", "content": ""}, None))
        return role + super().event(index, event)

    def _delta(self, index: int, delta: TextDelta) -> dict[str, Any]:
        choice = _choice(index, {"content": delta.text}, None)
        if self._logprobs:
            choice["logprobs"] = chat_logprobs(self._tokenizer, delta.tokens)
        return choice

    def _end(self, index: int, finish_reason: str) -> dict[str, Any]:
        return _choice(index, {}, finish_reason)

    def _choice(self, index: int, output: Output) -> dict[str, Any]:
        reason, tokens = output.finish_reason, output.tokens
        return {
            "index": index,
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": chat_logprobs(self._tokenizer, tokens) if self._logprobs else None,
            "finish_reason": reason.value if reason else None,
        }


def _choice(index: int, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
