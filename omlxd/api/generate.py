"""Runs a request for generated text, whatever protocol it came by, and writes its response.

A protocol brings a reader of its bodies and a writer of its responses; nothing else of it is known
here.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send

from omlxd.api.connection import Exchange, while_connected
from omlxd.api.errors import internal_error
from omlxd.api.services import Services
from omlxd.api.sse import EventStream
from omlxd.backend.sequence import FinishReason, NewToken, Sampling, SequenceSpec
from omlxd.engine.generation import PromptProgress, RequestPhase
from omlxd.engine.registry import RunningRequest
from omlxd.engine.request import GenerationRequest
from omlxd.engine.text_events import GenerationEnd, TextDelta, TextEvent, text_events
from omlxd.errors import ContextLengthExceeded, InvalidRequest, OmlxdError
from omlxd.library.catalog import CatalogModel, ModelKind
from omlxd.model_settings.options import ModelSettings
from omlxd.text.detokenize import Detokenizer
from omlxd.text.protocol import Tokenizer
from omlxd.text.stops import StopStrings, stop_ids

log = structlog.get_logger(__name__)

T = TypeVar("T")

UNKNOWN_CONTEXT_TOKENS = 8192
"""Most new tokens by default, when neither a limit nor the model's context is known."""

RECOMMENDED_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, 1e6),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 10),
}
"""Sampling parameters that are taken from generation_config.json, with their bounds."""

# One encoder for all: json.dumps would make one for every token.
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParameters:
    """What a request says about its generation; None: it does not say.

    Attributes:
        logit_bias: token id -> bias; name of the parameter is ``logit_bias``.
        top_logprobs: as in ``SequenceSpec``.
        stops: stop strings.
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
    top_logprobs: int | None = None
    stops: tuple[str, ...] = ()


@dataclass(slots=True)
class Choice:
    """The whole text of one sequence, collected."""

    text: list[str] = field(default_factory=list)
    tokens: list[NewToken] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    finish: FinishReason | None = None

    def add(self, delta: TextDelta) -> None:
        self.text.append(delta.text)
        self.tokens.extend(delta.tokens)
        self.starts.extend(delta.starts)


@dataclass(slots=True)
class TokenUsage:
    """Tokens of all choices of a request."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def add(self, end: GenerationEnd) -> None:
        self.prompt += end.prompt_tokens
        self.completion += end.completion_tokens
        self.cached += end.cached_tokens


class ResponseWriter(Protocol):
    """Writes the response to one request in the objects of its protocol, as plain dictionaries."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """The event before the first of a choice, if the protocol has one."""

    def delta(self, index: int, delta: TextDelta) -> dict[str, Any]: ...

    def ending(self, index: int, finish: FinishReason) -> dict[str, Any]: ...

    def closing(self, usage: TokenUsage) -> dict[str, Any] | None:
        """The event after all choices, if there is to be one."""

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> dict[str, Any]:
        """The response that is not streamed."""


class RequestReader(Protocol):
    """Reads one body of a protocol."""

    @property
    def id(self) -> str:
        """The id of the request; sequences and ``/status`` have it."""

    @property
    def model(self) -> str | None: ...

    @property
    def stream(self) -> bool: ...

    @property
    def continues(self) -> bool:
        """As in ``GenerationRequest``."""

    @property
    def parameters(self) -> GenerationParameters: ...

    async def prompts(
        self, model: CatalogModel, tokenizer: Tokenizer
    ) -> Mapping[str, Sequence[int]]:
        """The prompt of each choice in tokens, by its place in the body. Raises InvalidRequest."""

    def writer(self, model: CatalogModel, tokenizer: Tokenizer) -> ResponseWriter: ...

    def error_event(self, error: OmlxdError, writer: ResponseWriter | None) -> bytes:
        """An error inside a stream; ``writer`` is None when it was not made yet."""


async def generate(services: Services, request: Request, reader: RequestReader) -> Response:
    """The response to one request. Raises ClientGone, and what the request fails with."""
    run = _Run(services, reader)
    if reader.stream:
        return Exchange(run.stream)
    whole = await while_connected(request.receive, run.whole())
    return Response(whole, media_type="application/json")


class _Run:
    """One request on its way through library, pool and engine."""

    def __init__(self, services: Services, reader: RequestReader) -> None:
        self._services = services
        self._reader = reader
        self._writer: ResponseWriter | None = None

    async def whole(self) -> bytes:
        """The response as JSON."""
        usage = TokenUsage()
        with self._services.requests.running(self._reader.id) as running:
            request, writer = await self._prepare(running)
            choices = [Choice() for _ in request.sequences]
            async with aclosing(self._events(request, running)) as events:
                async for index, event in events:
                    if isinstance(event, TextDelta):
                        choices[index].add(event)
                    elif isinstance(event, GenerationEnd):
                        choices[index].finish = event.finish_reason
                        usage.add(event)
        return _json(writer.whole(choices, usage))

    async def stream(self, receive: Receive, send: Send) -> None:
        """Write the response as server-sent events.

        The start is held back until the engine has begun, so that an earlier failure (unknown
        model, prompt too long, no memory) is raised and gets a status of its own. Only when a
        load, a queue or a prefill takes longer than ``hold_start`` does the stream open before
        that, since clients lose patience. A later failure is an error event.
        """
        options = self._services.options
        stream = EventStream(
            send,
            interval=options.keep_alive_interval,
            hold_start=options.hold_start,
            send_timeout=options.send_timeout,
        )
        await while_connected(receive, self._write_or_fail(stream), stream.keep_alive())

    async def _write_or_fail(self, stream: EventStream) -> None:
        try:
            await self._write(stream)
        except Exception as error:
            if stream.give_up_unopened():
                raise
            if isinstance(error, OmlxdError):
                log.warning("stream_failed", code=error.code, message=error.message)
                told = error
            else:
                log.exception("stream_failed")
                told = internal_error(self._reader.id)
            await stream.event(self._reader.error_event(told, self._writer))
        await stream.close()

    async def _write(self, stream: EventStream) -> None:
        usage = TokenUsage()
        opened: set[int] = set()
        with self._services.requests.running(self._reader.id) as running:
            request, writer = await self._prepare(running)
            async with aclosing(self._events(request, running)) as events:
                async for index, event in events:
                    if isinstance(event, PromptProgress):
                        await stream.open()
                        continue
                    if index not in opened:
                        opened.add(index)
                        if (opening := writer.opening(index)) is not None:
                            await stream.event(_json(opening))
                    if isinstance(event, TextDelta):
                        await stream.event(_json(writer.delta(index, event)))
                    else:
                        usage.add(event)
                        await stream.event(_json(writer.ending(index, event.finish_reason)))
        if (closing := writer.closing(usage)) is not None:
            await stream.event(_json(closing))

    async def _prepare(self, running: RunningRequest) -> tuple[GenerationRequest, ResponseWriter]:
        """Find the model and make the tokens. Raises as ``Library.resolve`` does, and
        InvalidRequest."""
        model = _generating_model(self._services, self._reader.model)
        running.model_id = model.id
        tokenizer = await self._services.pool.tokenizer(model)
        prompts = await self._reader.prompts(model, tokenizer)
        self._writer = self._reader.writer(model, tokenizer)
        return self._request(model, tokenizer, prompts), self._writer

    def _request(
        self, model: CatalogModel, tokenizer: Tokenizer, prompts: Mapping[str, Sequence[int]]
    ) -> GenerationRequest:
        services, parameters = self._services, self._reader.parameters
        settings = services.library.settings.of(model.id)
        sampling = _sampling(parameters, settings, model.generation, tokenizer.vocab_size)
        wanted = parameters.max_tokens or settings.max_tokens or services.options.default_max_tokens
        context = services.library.context_length(model.id)
        request_id = self._reader.id
        sequences = tuple(
            SequenceSpec(
                id=f"{request_id}-{index}" if len(prompts) > 1 else request_id,
                prompt=tuple(prompt),
                max_tokens=most_new_tokens(wanted, context, len(prompt), param),
                sampling=sampling,
                stop_tokens=tokenizer.stop_tokens | stop_ids(tokenizer, parameters.stops),
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
            continues=self._reader.continues,
        )

    async def _events(
        self, request: GenerationRequest, running: RunningRequest
    ) -> AsyncGenerator[tuple[int, TextEvent]]:
        """(choice, its next event) in the order in which the events come.

        When the model's settings bound its concurrent requests, the choices run one after
        another: a lease is one place.
        """
        services = self._services
        services.requests.advance(running, RequestPhase.WAITING)
        acquire = services.pool.acquire
        async with acquire(
            request.model_id, request_id=request.id, made_for=request.fingerprint
        ) as lease:
            with ExitStack() as ends:

                def begin(sequence: SequenceSpec) -> AsyncIterator[TextEvent]:
                    generation = lease.submit(sequence)
                    ends.callback(services.requests.served.add, generation)
                    ends.callback(generation.cancel)
                    prompt = sequence.prompt if request.continues else ()
                    detokenizer = Detokenizer(request.tokenizer, prompt=prompt)
                    return text_events(generation, detokenizer, StopStrings(request.stops))

                settings = services.library.settings.of(request.model_id)
                bounded = settings.max_concurrent_requests is not None
                # A single choice must not pay for a task per event.
                in_order = bounded or len(request.sequences) == 1
                streams = map(begin, request.sequences)
                events = in_turn(streams) if in_order else interleave(streams)
                services.requests.advance(running, None)
                async with aclosing(events):
                    async for item in events:
                        yield item


def _generating_model(services: Services, name: str | None) -> CatalogModel:
    # Some clients write no model as "".
    model = services.library.resolve(name or None)
    if model.kind in (ModelKind.EMBEDDING, ModelKind.RERANKER):
        raise InvalidRequest(
            f"model: '{model.id}' is made for {model.kind.value} and writes no text; choose a "
            "language model.",
            param="model",
        )
    return model


def most_new_tokens(wanted: int | None, context: int | None, prompt: int, param: str) -> int:
    """How many tokens may be generated: what is wanted, within what the context leaves.

    ``param``: the place of the prompt in the body. Raises ContextLengthExceeded when the context
    leaves nothing.
    """
    if context is None:
        return wanted or UNKNOWN_CONTEXT_TOKENS
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
    recommended: Mapping[str, Any],
    vocab_size: int,
) -> Sampling:
    """The request's own parameters, then the model's settings, then generation_config.json."""

    def pick(name: str) -> float | None:
        values = (getattr(asked, name), getattr(settings, name), _recommended(recommended, name))
        return next((value for value in values if value is not None), None)

    temperature, penalty = pick("temperature"), pick("repetition_penalty")
    top_p, top_k = pick("top_p"), pick("top_k")
    if top_p == 0:
        # A nucleus without mass holds only the most likely token.
        top_p, top_k = None, 1
    return Sampling(
        temperature=1.0 if temperature is None else float(temperature),
        top_p=None if top_p is None or top_p >= 1 else float(top_p),
        top_k=None if top_k is None or top_k < 1 else int(top_k),
        min_p=pick("min_p") or None,
        seed=None if asked.seed is None else asked.seed % 2**64,
        repetition_penalty=None if penalty == 1 else penalty,
        presence_penalty=pick("presence_penalty") or None,
        frequency_penalty=pick("frequency_penalty") or None,
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


def _recommended(config: Mapping[str, Any], name: str) -> float | None:
    """A number of generation_config.json, which anybody may have written, if it makes sense."""
    if name not in RECOMMENDED_RANGES or (
        name == "temperature" and config.get("do_sample") is False
    ):
        return None
    low, high = RECOMMENDED_RANGES[name]
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if low <= value <= high else None


async def in_turn(streams: Iterable[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """(number of the stream, its next item); a stream begins when the one before has ended."""
    for index, stream in enumerate(streams):
        async for item in stream:
            yield index, item


async def interleave(begun: Iterable[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """(number of the stream, its next item) in the order in which the items come."""
    streams = tuple(begun)
    pending = {asyncio.create_task(_next(s)): index for index, s in enumerate(streams)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = pending.pop(task)
                found = task.result()
                if found is not None:
                    pending[asyncio.create_task(_next(streams[index]))] = index
                    yield index, found[0]
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _next(stream: AsyncIterator[T]) -> tuple[T] | None:
    async for item in stream:
        return (item,)
    return None


def _json(value: dict[str, Any]) -> bytes:
    # A lone surrogate cannot be encoded.
    return _encode(value).encode("utf-8", "replace")
