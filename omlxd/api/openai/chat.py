"""POST /v1/chat/completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlxd.api.generate import (
    Choice,
    GenerationParameters,
    ResponseWriter,
    TokenUsage,
    generate,
)
from omlxd.api.openai.logprobs import chat_logprobs
from omlxd.api.openai.messages import template_messages
from omlxd.api.openai.parameters import CHAT, refuse_unsupported
from omlxd.api.openai.wire import ChatRequest, OpenAIReader, usage_body
from omlxd.api.services import Services
from omlxd.backend.sequence import FinishReason
from omlxd.engine.text_events import TextDelta
from omlxd.errors import InvalidRequest
from omlxd.library.catalog import CatalogModel
from omlxd.text.protocol import Tokenizer


def chat_routes(services: Services) -> APIRouter:
    routes = APIRouter(tags=["openai"])

    @routes.post("/v1/chat/completions")
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        services.refuse_unless_ready()
        return await generate(services, request, ChatReader(services, body))

    return routes


class ChatReader(OpenAIReader):
    """Raises UnsupportedParameter and InvalidRequest for what can be seen in the body alone."""

    continues = False

    def __init__(self, services: Services, body: ChatRequest) -> None:
        super().__init__(services, body, "chatcmpl")
        refuse_unsupported(body.model_extra or {}, CHAT)
        if body.top_logprobs and not body.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
        self._logprobs = bool(body.logprobs)
        self._top_logprobs = body.top_logprobs or 0
        self._messages = template_messages(body.messages)

    @property
    def parameters(self) -> GenerationParameters:
        return self._parameters(self._top_logprobs if self._logprobs else None)

    async def prompts(
        self, model: CatalogModel, tokenizer: Tokenizer
    ) -> Mapping[str, Sequence[int]]:
        settings = self._services.library.settings.of(model.id)
        prompt = await self._services.prompts.chat_prompt(
            tokenizer,
            self._messages,
            model=model.id,
            template_arguments=settings.template_arguments or {},
        )
        return {"messages": prompt}

    def writer(self, model: CatalogModel, tokenizer: Tokenizer) -> ResponseWriter:
        return ChatWriter(
            self.id, self._now(), model.id, tokenizer, self._logprobs, self._with_usage
        )


@dataclass(frozen=True, slots=True)
class ChatWriter:
    """OpenAI's chat objects of one request."""

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    logprobs: bool
    with_usage: bool

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._chunk(index, {"role": "assistant", "content": ""}, None)

    def delta(self, index: int, delta: TextDelta) -> dict[str, Any]:
        chunk = self._chunk(index, {"content": delta.text}, None)
        if self.logprobs:
            chunk["choices"][0]["logprobs"] = chat_logprobs(self.tokenizer, delta.tokens)
        return chunk

    def ending(self, index: int, finish: FinishReason) -> dict[str, Any]:
        return self._chunk(index, {}, finish.value)

    def closing(self, usage: TokenUsage) -> dict[str, Any] | None:
        return {**self.head, "choices": [], "usage": usage_body(usage)} if self.with_usage else None

    @property
    def head(self) -> dict[str, Any]:
        """What every chunk begins with, before its choices."""
        return self._head("chat.completion.chunk")

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> dict[str, Any]:
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage_body(usage),
        }

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        content = "".join(choice.text)
        return {
            "index": index,
            "message": {"role": "assistant", "content": content, "refusal": None},
            "logprobs": chat_logprobs(self.tokenizer, choice.tokens) if self.logprobs else None,
            "finish_reason": choice.finish.value if choice.finish else None,
        }

    def _chunk(self, index: int, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self.head, "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}
