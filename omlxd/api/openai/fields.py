"""The fields that the bodies of OpenAI's chat and text completions share."""

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
)

from omlxd.api.generation_parameters import GenerationParameters

MOST_STOPS = 16
LONGEST_STOP = 1000
MOST_LOGPROBS = 20
MOST_BIASES = 2048


def _no_boolean(value: Any) -> Any:
    """Pydantic would take ``true`` for 1."""
    if isinstance(value, bool):
        raise ValueError(f"A number is needed, not {str(value).lower()}.")
    return value


# It comes after the bounds; otherwise the schema would not show them.
NoBoolean = BeforeValidator(_no_boolean)
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
MaxTokens = Annotated[int | None, Field(ge=1), NoBoolean]
Penalty = Annotated[float | None, Field(ge=-2, le=2), NoBoolean]


def text_or_list(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<text>"


class WireModel(BaseModel):
    model_config = ConfigDict(extra="allow", allow_inf_nan=False, frozen=True)


class StreamOptions(WireModel):
    include_usage: bool | None = None


class GenerationFields(WireModel):
    """None: the body does not have the field."""

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
        Discriminator(text_or_list),
    ] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def parameters(self, *, top_logprobs: int | None, continues: bool) -> GenerationParameters:
        return GenerationParameters(
            max_tokens=self.max_completion_tokens or self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            stops=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            top_logprobs=top_logprobs,
            continues=continues,
        )
