"""From a validated body to sequences for the engine: answer length, sampling, their defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omlxd.api.openai.wire import GenerationFields
from omlxd.api.services import Services
from omlxd.backend.sequence import Sampling, SequenceSpec
from omlxd.errors import ContextLengthExceeded, InvalidRequest
from omlxd.library.catalog import CatalogModel, ModelKind
from omlxd.model_settings.options import ModelSettings
from omlxd.text.protocol import Tokenizer
from omlxd.text.stops import stop_ids

UNKNOWN_CONTEXT_ANSWER: Final = 8192
"""Longest answer by default where neither a limit nor the model's context is known."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, ready for the engine.

    Attributes:
        made_for: fingerprint of the files that the tokens of ``sequences`` were made with.
        sequences: one a choice, in order.
        continues: the answers continue the prompts' text rather than begin one.
    """

    id: str
    model_id: str
    made_for: str
    tokenizer: Tokenizer
    sequences: tuple[SequenceSpec, ...]
    stops: tuple[str, ...]
    continues: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """A model and the prompts for it.

    Attributes:
        prompts: in tokens, by their place in the body.
        continues: as of Ask.
    """

    model: CatalogModel
    tokenizer: Tokenizer
    prompts: Mapping[str, Sequence[int]]
    top_logprobs: int | None
    continues: bool


def generating_model(services: Services, name: str | None) -> CatalogModel:
    """The model that ``name`` means; some clients write none as "". Raises what ``Pool.resolve``
    raises, and InvalidRequest for one that writes no text."""
    model = services.library.resolve(name or None)
    if model.kind in (ModelKind.EMBEDDING, ModelKind.RERANKER):
        raise InvalidRequest(
            f"model: '{model.id}' is made for {model.kind.value} and writes no text; choose a "
            "language model.",
            param="model",
        )
    return model


def make_ask(services: Services, request_id: str, body: GenerationFields, asked: Asked) -> Ask:
    """Raises InvalidRequest, ContextLengthExceeded."""
    model_id = asked.model.id
    settings = services.library.settings.of(model_id)
    sampling = _sampling(body, settings, asked.model.generation, asked.tokenizer.vocab_size)
    wanted = (
        body.max_completion_tokens
        or body.max_tokens
        or settings.max_tokens
        or services.options.default_max_tokens
    )
    context = services.library.context_length(model_id)
    stop_tokens = asked.tokenizer.stop_tokens | stop_ids(asked.tokenizer, body.stops)
    several = len(asked.prompts) > 1
    sequences = tuple(
        SequenceSpec(
            id=f"{request_id}-{index}" if several else request_id,
            prompt=tuple(prompt),
            max_tokens=answer_length(wanted, context, len(prompt), param),
            sampling=sampling,
            stop_tokens=stop_tokens,
            top_logprobs=asked.top_logprobs,
        )
        for index, (param, prompt) in enumerate(asked.prompts.items())
    )
    return Ask(
        id=request_id,
        model_id=model_id,
        made_for=asked.model.fingerprint,
        tokenizer=asked.tokenizer,
        sequences=sequences,
        stops=body.stops,
        continues=asked.continues,
    )


def answer_length(wanted: int | None, context: int | None, prompt: int, param: str) -> int:
    """Tokens the answer may have: what is wanted, within what the context leaves.

    Raises ContextLengthExceeded when it leaves nothing.
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
    body: GenerationFields, settings: ModelSettings, made_for: Mapping[str, Any], vocab_size: int
) -> Sampling:
    """The request's own wishes, then the settings', then what the model's maker recommends."""
    temperature = _first(body.temperature, settings.temperature, _temperature(made_for))
    top_p = _first(body.top_p, settings.top_p, _number(made_for, "top_p", 0, 1))
    top_k = _first(body.top_k, settings.top_k, _number(made_for, "top_k", 0, 1e6))
    penalty = _first(
        body.repetition_penalty,
        settings.repetition_penalty,
        _number(made_for, "repetition_penalty", 0.01, 10),
    )
    if top_p == 0:
        # Nothing but the most likely token is in a nucleus without mass.
        top_p, top_k = None, 1
    return Sampling(
        temperature=1.0 if temperature is None else float(temperature),
        top_p=None if top_p is None or top_p >= 1 else float(top_p),
        top_k=None if top_k is None or top_k < 1 else int(top_k),
        min_p=_first(body.min_p, settings.min_p, _number(made_for, "min_p", 0, 1)) or None,
        seed=None if body.seed is None else body.seed % 2**64,
        repetition_penalty=None if penalty == 1 else penalty,
        presence_penalty=_first(body.presence_penalty, settings.presence_penalty) or None,
        frequency_penalty=_first(body.frequency_penalty, settings.frequency_penalty) or None,
        logit_bias=_logit_bias(body, vocab_size),
    )


def _logit_bias(body: GenerationFields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = tuple((body.logit_bias or {}).items())
    for token, _ in biases:
        if token >= vocab_size:
            name = f"logit_bias.{str(token)[:64]}"
            raise InvalidRequest(
                f"{name}: this model's token ids end at {vocab_size - 1}.", param=name
            )
    return biases


def _temperature(made_for: Mapping[str, Any]) -> float | None:
    return None if made_for.get("do_sample") is False else _number(made_for, "temperature", 0, 2)


def _number(made_for: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """A number of generation_config.json, which anybody may have written, where it is sane."""
    value = made_for.get(name)
    sane = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    return value if sane else None


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
