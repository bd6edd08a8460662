"""What OpenAI's two endpoints share: the bodies of requests, usage and errors in a stream."""

import secrets
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Strict,
    Tag,
    field_validator,
)

from omlxd.api.errors import error_body
from omlxd.api.generate import GenerationParameters, ResponseWriter, TokenUsage
from omlxd.api.services import Services
from omlxd.errors import OmlxdError

MOST_STOPS = 16
LONGEST_STOP = 1000
MOST_LOGPROBS = 20
MOST_BIASES = 2048
MOST_PIECES = 10_000
"""Messages and parts of messages of one request; a million of them hold up the loop for seconds."""
MOST_TOKENS = 1_000_000
"""Token ids in the prompts of one request; longer than the contexts of the models there are."""


def _no_boolean(value: Any) -> Any:
    """To pydantic ``true`` is 1."""
    if isinstance(value, bool):
        raise ValueError(f"A number is needed, not {str(value).lower()}.")
    return value


# After the bounds: put on what has a validator of its own, they would not reach the schema.
NoBoolean = BeforeValidator(_no_boolean)
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
MaxTokens = Annotated[int | None, Field(ge=1), NoBoolean]
Penalty = Annotated[float | None, Field(ge=-2, le=2), NoBoolean]


def _shape(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<text>"


class WireModel(BaseModel):
    model_config = ConfigDict(extra="allow", allow_inf_nan=False, frozen=True)


class StreamOptions(WireModel):
    include_usage: bool | None = None


class GenerationFields(WireModel):
    """What both endpoints share. None is "not said"."""

    model: Annotated[str | None, Field(max_length=500)] = None
    max_tokens: MaxTokens = None
    max_completion_tokens: MaxTokens = None
    temperature: Annotated[float | None, Field(ge=0, le=2), NoBoolean] = None
    top_p: Annotated[float | None, Field(ge=0, le=1), NoBoolean] = None
    top_k: Annotated[int | None, Field(ge=-1, le=1_000_000), NoBoolean] = None
    min_p: Annotated[float | None, Field(ge=0, le=1), NoBoolean] = None
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**64), NoBoolean] = None
    repetition_penalty: Annotated[float | None, Field(gt=0, le=10), NoBoolean] = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    logit_bias: Annotated[
        dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100, le=100), NoBoolean]]
        | None,
        Field(max_length=MOST_BIASES),
    ] = None
    stop: Annotated[
        Annotated[Stop | None, Tag("<text>")]
        | Annotated[list[Stop], Field(max_length=MOST_STOPS), Tag("<list>")],
        Discriminator(_shape),
    ] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class Part(WireModel):
    type: str
    text: str | None = None


Content = Annotated[
    Annotated[str | None, Tag("<text>")] | Annotated[list[Part], Tag("<list>")],
    Discriminator(_shape),
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
        # Before each of them is looked at, which is what takes long.
        if isinstance(value, list) and _pieces(value) > MOST_PIECES:
            raise ValueError(f"at most {MOST_PIECES} messages and content parts are taken")
        return value


def _pieces(messages: list[Any]) -> int:
    contents = (message.get("content") for message in messages if isinstance(message, dict))
    return len(messages) + sum(len(parts) for parts in contents if isinstance(parts, list))


def _prompt_shape(value: Any) -> str:
    if not isinstance(value, list):
        return "<text>"
    if value and isinstance(value[0], list):
        return "<token lists>"
    return "<tokens>" if value and isinstance(value[0], int) else "<texts>"


# A million wrong ids must not become a million errors. Strict, since a call for each takes long.
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
        # Before each of them is looked at, which is what takes long.
        if not isinstance(value, list):
            return value
        if len(value) + sum(len(inner) for inner in value if isinstance(inner, list)) > MOST_TOKENS:
            raise ValueError(f"at most {MOST_TOKENS} texts and token ids are taken")
        return value

    @field_validator("logprobs", mode="before")
    @classmethod
    def _boolean(cls, value: Any) -> Any:
        # Some clients send chat's boolean: true is the chosen token's alone.
        return {True: 0, False: None}[value] if isinstance(value, bool) else value

    @property
    def prompts(self) -> dict[str, str | list[int]]:
        """One entry a choice, by its place in the body."""
        if isinstance(self.prompt, str):
            return {"prompt": self.prompt}
        if isinstance(self.prompt[0], int):
            return {"prompt": [token for token in self.prompt if isinstance(token, int)]}
        several = (item for item in self.prompt if not isinstance(item, int))
        return {f"prompt[{index}]": item for index, item in enumerate(several)}


class OpenAIReader:
    """What the readers of both endpoints share."""

    def __init__(self, services: Services, body: GenerationFields, prefix: str) -> None:
        """``prefix`` of the request's id."""
        self.id = f"{prefix}-{secrets.token_hex(12)}"
        self.model = body.model
        self.stream = bool(body.stream)
        self._services = services
        self._body = body
        self._with_usage = body.wants_usage

    def error_event(self, error: OmlxdError, writer: ResponseWriter | None) -> bytes:
        # Strict clients want the head of a chunk in an error too. It has no choices: a client that
        # finds them takes the event for a chunk, and the error is lost (Zed).
        return error_body(error, getattr(writer, "head", {}))

    def _parameters(self, top_logprobs: int | None) -> GenerationParameters:
        body = self._body
        return GenerationParameters(
            max_tokens=body.max_completion_tokens or body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            min_p=body.min_p,
            seed=body.seed,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logit_bias=body.logit_bias,
            top_logprobs=top_logprobs,
            stops=body.stops,
        )

    def _now(self) -> int:
        return int(self._services.identity.unix_clock())


def usage_body(usage: TokenUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
