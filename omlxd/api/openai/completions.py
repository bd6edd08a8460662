"""POST /v1/completions."""

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
from omlxd.api.openai.logprobs import completion_logprobs
from omlxd.api.openai.parameters import COMPLETIONS, refuse_unsupported
from omlxd.api.openai.wire import CompletionRequest, OpenAIReader, usage_body
from omlxd.api.services import Services
from omlxd.backend.sequence import FinishReason
from omlxd.engine.text_events import TextDelta
from omlxd.errors import InvalidRequest
from omlxd.library.catalog import CatalogModel
from omlxd.text.protocol import Tokenizer


def completion_routes(services: Services) -> APIRouter:
    routes = APIRouter(tags=["openai"])

    @routes.post("/v1/completions")
    async def completions(request: Request, body: CompletionRequest) -> Response:
        services.refuse_unless_ready()
        return await generate(services, request, CompletionReader(services, body))

    return routes


class CompletionReader(OpenAIReader):
    """Raises UnsupportedParameter and InvalidRequest for what can be seen in the body alone."""

    continues = True

    def __init__(self, services: Services, body: CompletionRequest) -> None:
        super().__init__(services, body, "cmpl")
        refuse_unsupported(body.model_extra or {}, COMPLETIONS)
        self._prompts = body.prompts
        _check_number(services, len(self._prompts))
        self._logprobs = body.logprobs

    @property
    def parameters(self) -> GenerationParameters:
        return self._parameters(self._logprobs)

    async def prompts(
        self, model: CatalogModel, tokenizer: Tokenizer
    ) -> Mapping[str, Sequence[int]]:
        return {
            name: await self._services.prompts.completion_prompt(tokenizer, prompt, param=name)
            for name, prompt in self._prompts.items()
        }

    def writer(self, model: CatalogModel, tokenizer: Tokenizer) -> ResponseWriter:
        logprobs = self._logprobs is not None
        return CompletionWriter(
            self.id, self._now(), model.id, tokenizer, logprobs, self._with_usage
        )


def _check_number(services: Services, prompts: int) -> None:
    most, places = services.options.max_prompts, services.max_sequences
    if prompts > most:
        raise InvalidRequest(
            f"prompt: {prompts} prompts; one request may have {most} (api.max_prompts).",
            param="prompt",
        )
    # The engine would say that the queue is full, and clients would try again in vain.
    if places is not None and prompts > places:
        raise InvalidRequest(
            f"prompt: {prompts} prompts; a model of this server has {places} places for what runs "
            "and waits. Send fewer at a time, or raise engine.max_waiting.",
            param="prompt",
        )


@dataclass(frozen=True, slots=True)
class CompletionWriter:
    """OpenAI's text completion objects of one request; a chunk has the form of the whole."""

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    logprobs: bool
    with_usage: bool

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def delta(self, index: int, delta: TextDelta) -> dict[str, Any]:
        return self._body([self._choice(index, delta.text, delta, None)])

    def ending(self, index: int, finish: FinishReason) -> dict[str, Any]:
        return self._body([self._choice(index, "", None, finish)])

    def closing(self, usage: TokenUsage) -> dict[str, Any] | None:
        return {**self._body([]), "usage": usage_body(usage)} if self.with_usage else None

    @property
    def head(self) -> dict[str, Any]:
        """What every chunk begins with, before its choices."""
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
        }

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> dict[str, Any]:
        written = [
            self._choice(index, "".join(choice.text), choice, choice.finish)
            for index, choice in enumerate(choices)
        ]
        return {**self._body(written), "usage": usage_body(usage)}

    def _body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self.head, "choices": choices}

    def _choice(
        self,
        index: int,
        text: str,
        tokens: TextDelta | Choice | None,
        finish: FinishReason | None,
    ) -> dict[str, Any]:
        logprobs = None
        if self.logprobs and tokens is not None:
            logprobs = completion_logprobs(self.tokenizer, tokens.tokens, tokens.starts)
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish.value if finish else None,
        }
