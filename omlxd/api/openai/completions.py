"""POST /v1/completions."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlxd.api.open_requests import OpenRequest
from omlxd.api.openai.answering import Answering, Choice
from omlxd.api.openai.ask import Ask, Asked, generating_model, make_ask
from omlxd.api.openai.logprobs import completion_logprobs
from omlxd.api.openai.parameters import COMPLETIONS, refuse_unsupported
from omlxd.api.openai.wire import CompletionRequest
from omlxd.api.services import Services
from omlxd.backend.sequence import FinishReason
from omlxd.engine.answer import AnswerDelta
from omlxd.errors import InvalidRequest
from omlxd.text.protocol import Tokenizer


def completion_routes(services: Services) -> APIRouter:
    routes = APIRouter(tags=["openai"])

    @routes.post("/v1/completions")
    async def completions(request: Request, body: CompletionRequest) -> Response:
        services.refuse_unless_ready()
        refuse_unsupported(body.model_extra or {}, COMPLETIONS)
        prompts = body.prompts
        _check_number(services, len(prompts))
        request_id = f"cmpl-{secrets.token_hex(12)}"

        async def prepare(entry: OpenRequest) -> tuple[Ask, CompletionWire]:
            model = generating_model(services, body.model)
            entry.model_id = model.id
            tokenizer = await services.pool.tokenizer(model)
            tokens = {
                name: await services.prompts.completion_prompt(tokenizer, prompt, param=name)
                for name, prompt in prompts.items()
            }
            asked = Asked(model, tokenizer, tokens, body.logprobs, continues=True)
            ask = make_ask(services, request_id, body, asked)
            created = int(services.identity.unix_clock())
            logprobs = body.logprobs is not None
            return ask, CompletionWire(request_id, created, model.id, tokenizer, logprobs)

        return await Answering(services, request_id).respond(
            request, prepare, stream=bool(body.stream), usage=body.wants_usage
        )

    return routes


def _check_number(services: Services, prompts: int) -> None:
    most, sequences = services.options.max_prompts, services.max_sequences
    if prompts > most:
        raise InvalidRequest(
            f"prompt: {prompts} prompts; one request may have {most} (api.max_prompts).",
            param="prompt",
        )
    # The engine would call the queue full, and that is worth another try.
    if sequences is not None and prompts > sequences:
        raise InvalidRequest(
            f"prompt: {prompts} prompts; a model of this server has {sequences} places for what "
            "runs and waits. Send fewer at a time, or raise engine.max_waiting.",
            param="prompt",
        )


@dataclass(frozen=True, slots=True)
class CompletionWire:
    """OpenAI's text completion objects of one request; chunks and whole have one form."""

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    logprobs: bool

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def delta(self, index: int, delta: AnswerDelta) -> dict[str, Any]:
        logprobs = None
        if self.logprobs:
            logprobs = completion_logprobs(self.tokenizer, delta.tokens, delta.starts)
        return self._body([_choice(index, delta.text, logprobs, None)])

    def ending(self, index: int, finish: FinishReason) -> dict[str, Any]:
        return self._body([_choice(index, "", None, finish.value)])

    def head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
        }

    def whole(self, choices: Sequence[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        return {**self._body([self._whole(i, c) for i, c in enumerate(choices)]), "usage": usage}

    def _whole(self, index: int, choice: Choice) -> dict[str, Any]:
        logprobs = None
        if self.logprobs:
            logprobs = completion_logprobs(self.tokenizer, choice.tokens, choice.starts)
        finish = choice.finish.value if choice.finish else None
        return _choice(index, "".join(choice.text), logprobs, finish)

    def _body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self.head(), "choices": choices}


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
