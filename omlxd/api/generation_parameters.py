"""Makes a ``GenerationRequest`` from the parameters of a body: model, length, sampling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omlxd.api.services import Services
from omlxd.backend.sequence import Sampling, SequenceSpec
from omlxd.engine.registry import RunningRequest
from omlxd.engine.request import GenerationRequest
from omlxd.errors import ContextLengthExceeded, InvalidRequest
from omlxd.library.catalog import CatalogModel, ModelKind
from omlxd.model_settings.options import ModelSettings
from omlxd.text.protocol import Tokenizer
from omlxd.text.stops import stop_ids

UNKNOWN_CONTEXT_ANSWER: Final = 8192
"""The longest answer when neither a limit nor the model's context is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParameters:
    """The parameters of a body, in any protocol. None: the body does not have it.

    Attributes:
        top_k: below 1 is no limit; repetition_penalty: 1 changes nothing.
        logit_bias: token id -> number that is added to its logit.
        top_logprobs, continues: as in SequenceSpec and GenerationRequest.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    stops: tuple[str, ...] = ()
    top_logprobs: int | None = None
    continues: bool = False


async def find_model(
    services: Services, name: str | None, running: RunningRequest
) -> tuple[CatalogModel, Tokenizer]:
    """The model ``name``. Without a name, or with "" (some clients send it), the default model.

    Raises the errors of ``Library.resolve`` and of the tokenizer's loader, and InvalidRequest for
    a model that writes no text.
    """
    model = services.library.resolve(name or None)
    if model.kind in (ModelKind.EMBEDDING, ModelKind.RERANKER):
        raise InvalidRequest(
            f"model: '{model.id}' is made for {model.kind.value} and writes no text; choose a "
            "language model.",
            param="model",
        )
    running.model_id = model.id
    return model, await services.pool.tokenizer(model)


def make_request(
    services: Services,
    request_id: str,
    model: CatalogModel,
    tokenizer: Tokenizer,
    prompts: Mapping[str, Sequence[int]],
    parameters: GenerationParameters,
) -> GenerationRequest:
    """``prompts``: in tokens, by their place in the body.

    Raises InvalidRequest, ContextLengthExceeded.
    """
    settings = services.library.settings.of(model.id)
    sampling = _sampling(parameters, settings, model.generation, tokenizer.vocab_size)
    wanted = parameters.max_tokens or settings.max_tokens or services.options.default_max_tokens
    context = services.library.context_length(model.id)
    stop_tokens = tokenizer.stop_tokens | stop_ids(tokenizer, parameters.stops)
    sequences = tuple(
        SequenceSpec(
            id=f"{request_id}-{index}" if len(prompts) > 1 else request_id,
            prompt=tuple(prompt),
            max_tokens=answer_length(wanted, context, len(prompt), param),
            sampling=sampling,
            stop_tokens=stop_tokens,
            top_logprobs=parameters.top_logprobs,
        )
        for index, (param, prompt) in enumerate(prompts.items())
    )
    return GenerationRequest(
        id=request_id,
        model_id=model.id,
        fingerprint=model.fingerprint,
        tokenizer=tokenizer,
        sequences=sequences,
        stops=parameters.stops,
        continues=parameters.continues,
    )


def answer_length(wanted: int | None, context: int | None, prompt: int, param: str) -> int:
    """The most tokens of the answer: ``wanted``, but at most the rest of the context.

    Raises ContextLengthExceeded when the prompt fills the context.
    """
    if context is None:
        return wanted or UNKNOWN_CONTEXT_ANSWER
    left = context - prompt
    if left < 1:
        which = param if "[" in param else "The prompt"
        raise ContextLengthExceeded(
            prompt_tokens=prompt, context_length=context, param=param, which=which
        )
    return min(wanted or left, left)


def _sampling(
    asked: GenerationParameters,
    settings: ModelSettings,
    advice: Mapping[str, Any],
    vocab_size: int,
) -> Sampling:
    """Each value is the request's, else the setting's, else the advice of the model's maker."""
    temperature = _first(asked.temperature, settings.temperature, _temperature(advice))
    top_p = _first(asked.top_p, settings.top_p, _number(advice, "top_p", 0, 1))
    top_k = _first(asked.top_k, settings.top_k, _number(advice, "top_k", 0, 1e6))
    penalty = _first(
        asked.repetition_penalty,
        settings.repetition_penalty,
        _number(advice, "repetition_penalty", 0.01, 10),
    )
    if top_p == 0:
        # Only the most likely token is in a nucleus of mass 0.
        top_p, top_k = None, 1
    return Sampling(
        temperature=1.0 if temperature is None else float(temperature),
        top_p=None if top_p is None or top_p >= 1 else float(top_p),
        top_k=None if top_k is None or top_k < 1 else int(top_k),
        min_p=_first(asked.min_p, settings.min_p, _number(advice, "min_p", 0, 1)) or None,
        seed=None if asked.seed is None else asked.seed % 2**64,
        repetition_penalty=None if penalty == 1 else penalty,
        presence_penalty=_first(asked.presence_penalty, settings.presence_penalty) or None,
        frequency_penalty=_first(asked.frequency_penalty, settings.frequency_penalty) or None,
        logit_bias=_logit_bias(asked.logit_bias or {}, vocab_size),
    )


def _logit_bias(biases: Mapping[int, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    for token in biases:
        if token >= vocab_size:
            name = f"logit_bias.{str(token)[:64]}"
            raise InvalidRequest(
                f"{name}: this model's token ids end at {vocab_size - 1}.", param=name
            )
    return tuple(biases.items())


def _temperature(advice: Mapping[str, Any]) -> float | None:
    return None if advice.get("do_sample") is False else _number(advice, "temperature", 0, 2)


def _number(advice: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """A number of generation_config.json within its bounds. The file is not trusted."""
    value = advice.get(name)
    sane = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    return value if sane else None


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
