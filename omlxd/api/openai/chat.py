"""POST /v1/chat/completions."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlxd.api.open_requests import OpenRequest
from omlxd.api.openai.answering import Answering, Choice
from omlxd.api.openai.ask import Ask, Asked, generating_model, make_ask
from omlxd.api.openai.logprobs import chat_logprobs
from omlxd.api.openai.messages import template_messages
from omlxd.api.openai.parameters import CHAT, refuse_unsupported
from omlxd.api.openai.wire import ChatRequest
from omlxd.api.services import Services
from omlxd.backend.sequence import FinishReason
from omlxd.engine.answer import AnswerDelta
from omlxd.errors import InvalidRequest
from omlxd.text.protocol import Tokenizer


def chat_routes(services: Services) -> APIRouter:
    routes = APIRouter(tags=["openai"])

    @routes.post("/v1/chat/completions")
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        services.refuse_unless_ready()
        refuse_unsupported(body.model_extra or {}, CHAT)
        if body.top_logprobs and not body.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
        messages = template_messages(body.messages)
        request_id = f"chatcmpl-{secrets.token_hex(12)}"

        async def prepare(entry: OpenRequest) -> tuple[Ask, ChatWire]:
            model = generating_model(services, body.model)
            entry.model_id = model.id
            tokenizer = await services.pool.tokenizer(model)
            prompt = await services.prompts.chat_prompt(
                tokenizer,
                messages,
                model=model.id,
                template_arguments=services.library.settings.of(model.id).template_arguments or {},
            )
            top = (body.top_logprobs or 0) if body.logprobs else None
            asked = Asked(model, tokenizer, {"messages": prompt}, top, continues=False)
            ask = make_ask(services, request_id, body, asked)
            created = int(services.identity.unix_clock())
            return ask, ChatWire(request_id, created, model.id, tokenizer, bool(body.logprobs))

        return await Answering(services, request_id).respond(
            request, prepare, stream=bool(body.stream), usage=body.wants_usage
        )

    return routes


@dataclass(frozen=True, slots=True)
class ChatWire:
    """OpenAI's chat objects of one request."""

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    logprobs: bool

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._chunk(index, {"role": "assistant", "content": ""}, None)

    def delta(self, index: int, delta: AnswerDelta) -> dict[str, Any]:
        chunk = self._chunk(index, {"content": delta.text}, None)
        if self.logprobs:
            chunk["choices"][0]["logprobs"] = chat_logprobs(self.tokenizer, delta.tokens)
        return chunk

    def ending(self, index: int, finish: FinishReason) -> dict[str, Any]:
        return self._chunk(index, {}, finish.value)

    def head(self) -> dict[str, Any]:
        return self._head("chat.completion.chunk")

    def whole(self, choices: Sequence[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage,
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
        return {**self.head(), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}
