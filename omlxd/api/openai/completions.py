"""POST /v1/completions."""

import secrets
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Discriminator, Field, Strict, Tag, field_validator
from starlette.responses import Response

from omlxd.api.generate import Output, respond
from omlxd.api.generation_parameters import find_model, make_request
from omlxd.api.openai.fields import MOST_LOGPROBS, GenerationFields, NoBoolean
from omlxd.api.openai.unsupported import COMPLETIONS, refuse_unsupported
from omlxd.api.openai.writer import CompletionsWriter, completion_logprobs
from omlxd.api.services import Services
from omlxd.backend.sequence import NewToken
from omlxd.engine.registry import RunningRequest
from omlxd.engine.request import GenerationRequest
from omlxd.engine.text_events import TextDelta
from omlxd.errors import InvalidRequest

MOST_TOKENS = 1_000_000
"""Token ids in the prompts of one request. No model has a longer context."""


def _prompt_shape(value: Any) -> str:
    if not isinstance(value, list):
        return "<text>"
    if value and isinstance(value[0], list):
        return "<token lists>"
    return "<tokens>" if value and isinstance(value[0], int) else "<texts>"


# Fails at the first mistake: a million wrong ids must not become a million errors. Strict: a
# validator of our own would be called for each id, which takes long.
TokenList = Annotated[
    list[Annotated[int, Strict(), Field(ge=0)]], Field(min_length=1, fail_fast=True)
]
Prompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], Field(min_length=1, fail_fast=True), Tag("<texts>")]
    | Annotated[TokenList, Tag("<tokens>")]
    | Annotated[list[TokenList], Field(fail_fast=True), Tag("<token lists>")],
    Discriminator(_prompt_shape),
]


class CompletionRequest(GenerationFields):
    prompt: Prompt
    logprobs: Annotated[int | None, Field(ge=0, le=MOST_LOGPROBS), NoBoolean] = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _not_too_many(cls, value: Any) -> Any:
        # Count them before pydantic checks each one, which takes long.
        if not isinstance(value, list):
            return value
        if len(value) + sum(len(inner) for inner in value if isinstance(inner, list)) > MOST_TOKENS:
            raise ValueError(f"at most {MOST_TOKENS} texts and token ids are taken")
        return value

    @field_validator("logprobs", mode="before")
    @classmethod
    def _boolean(cls, value: Any) -> Any:
        # Some clients send a boolean, as chat has it: true means the chosen token only.
        return {True: 0, False: None}[value] if isinstance(value, bool) else value

    @property
    def prompts(self) -> dict[str, str | list[int]]:
        """One entry for each choice, by its place in the body."""
        if isinstance(self.prompt, str):
            return {"prompt": self.prompt}
        if isinstance(self.prompt[0], int):
            return {"prompt": [token for token in self.prompt if isinstance(token, int)]}
        several = (item for item in self.prompt if not isinstance(item, int))
        return {f"prompt[{index}]": item for index, item in enumerate(several)}


def completion_routes(services: Services) -> APIRouter:
    routes = APIRouter(tags=["openai"])

    @routes.post("/v1/completions")
    async def completions(request: Request, body: CompletionRequest) -> Response:
        services.refuse_unless_ready()
        refuse_unsupported(body.model_extra or {}, COMPLETIONS)
        prompts = body.prompts
        _check_number(services, len(prompts))
        writer = CompletionWriter(
            f"cmpl-{secrets.token_hex(12)}",
            int(services.identity.unix_clock()),
            logprobs=body.logprobs is not None,
            usage=body.wants_usage,
        )

        async def read(running: RunningRequest) -> GenerationRequest:
            model, tokenizer = await find_model(services, body.model, running)
            tokens = {
                name: await services.prompts.completion_prompt(tokenizer, prompt, param=name)
                for name, prompt in prompts.items()
            }
            parameters = body.parameters(top_logprobs=body.logprobs, continues=True)
            return make_request(services, writer.id, model, tokenizer, tokens, parameters)

        return await respond(services, request, read, writer, stream=bool(body.stream))

    return routes


def _check_number(services: Services, prompts: int) -> None:
    most, sequences = services.options.max_prompts, services.max_sequences
    if prompts > most:
        raise InvalidRequest(
            f"prompt: {prompts} prompts; one request may have {most} (api.max_prompts).",
            param="prompt",
        )
    # Otherwise the engine would say that its queue is full, and the client would try again.
    if sequences is not None and prompts > sequences:
        raise InvalidRequest(
            f"prompt: {prompts} prompts; a model of this server has {sequences} places for what "
            "runs and waits. Send fewer at a time, or raise engine.max_waiting.",
            param="prompt",
        )


class CompletionWriter(CompletionsWriter):
    whole_object = chunk_object = "text_completion"

    def _delta(self, index: int, delta: TextDelta) -> dict[str, Any]:
        return _choice(index, delta.text, self._logs(delta.tokens, delta.starts), None)

    def _end(self, index: int, finish_reason: str) -> dict[str, Any]:
        return _choice(index, "", None, finish_reason)

    def _choice(self, index: int, output: Output) -> dict[str, Any]:
        reason, logprobs = output.finish_reason, self._logs(output.tokens, output.starts)
        return _choice(index, output.text, logprobs, reason.value if reason else None)

    def _logs(self, tokens: Sequence[NewToken], starts: Sequence[int]) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        return completion_logprobs(self._tokenizer, tokens, starts)


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
