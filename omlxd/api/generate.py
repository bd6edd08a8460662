"""Runs a request against the pool and the engine, and sends its answer: as a stream or whole.

Nothing here belongs to one protocol. A protocol reads its body into a ``GenerationRequest`` and
has a ``ResponseWriter``.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send

from omlxd.api.connection import EventStream, Exchange, while_connected
from omlxd.api.errors import internal_error
from omlxd.api.services import Services
from omlxd.backend.sequence import FinishReason, NewToken, SequenceSpec
from omlxd.engine.generation import PromptProgress, RequestPhase
from omlxd.engine.registry import RunningRequest
from omlxd.engine.request import GenerationRequest
from omlxd.engine.text_events import GenerationEnd, TextDelta, TextEvent, text_events
from omlxd.errors import OmlxdError
from omlxd.text.detokenize import Detokenizer
from omlxd.text.stops import StopStrings

log = structlog.get_logger(__name__)

T = TypeVar("T")

Read = Callable[[RunningRequest], Awaitable[GenerationRequest]]
"""Makes the request from the body: finds the model, and makes the tokens of the prompts."""


@dataclass(slots=True)
class Output:
    """What one sequence of a request has generated, collected."""

    deltas: list[TextDelta] = field(default_factory=list)
    end: GenerationEnd | None = None

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def tokens(self) -> list[NewToken]:
        return [token for delta in self.deltas for token in delta.tokens]

    @property
    def starts(self) -> list[int]:
        return [start for delta in self.deltas for start in delta.starts]

    @property
    def finish_reason(self) -> FinishReason | None:
        return None if self.end is None else self.end.finish_reason


@dataclass(slots=True)
class Usage:
    """Tokens of all sequences of a request."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def add(self, end: GenerationEnd) -> None:
        self.prompt += end.prompt_tokens
        self.completion += end.completion_tokens
        self.cached += end.cached_tokens


class ResponseWriter(Protocol):
    """How one protocol writes the answer to one request.

    ``id`` is the id of the request. ``begin`` comes first, unless the request fails before. Then a
    stream is ``event`` for each event of each sequence, and at last ``finish`` or ``failure``:
    bytes of server-sent events. An answer that is no stream is ``whole``.
    """

    @property
    def id(self) -> str: ...

    def begin(self, request: GenerationRequest) -> None: ...

    def event(self, index: int, event: TextDelta | GenerationEnd) -> bytes:
        """``index`` is the number of the sequence in the request."""

    def finish(self, usage: Usage) -> bytes: ...

    def failure(self, error: OmlxdError) -> bytes: ...

    def whole(self, outputs: Sequence[Output], usage: Usage) -> bytes:
        """The body, as JSON."""


async def respond(
    services: Services, http: Request, read: Read, writer: ResponseWriter, *, stream: bool
) -> Response:
    """The answer to the request that ``read`` makes.

    Raises ClientGone, and the error that the request fails with. The start of a stream is held
    back until the device thread has begun, so that an earlier failure (unknown model, too long,
    no memory) is raised too and gets its own HTTP status. When a load, a queue or a prefill takes
    longer than ``hold_start``, the stream starts before, so that the client keeps waiting; a later
    failure is an event of the stream.
    """
    if not stream:
        whole = await while_connected(http.receive, _whole(services, read, writer))
        return Response(whole, media_type="application/json")

    async def write(receive: Receive, send: Send) -> None:
        events = EventStream(send, services.options)
        work = _write_stream(services, read, writer, events)
        await while_connected(receive, work, events.keep_alive())

    return Exchange(write)


async def _whole(services: Services, read: Read, writer: ResponseWriter) -> bytes:
    outputs: dict[int, Output] = {}
    usage = Usage()
    async with aclosing(_run(services, read, writer)) as events:
        async for index, event in events:
            output = outputs.setdefault(index, Output())
            if isinstance(event, TextDelta):
                output.deltas.append(event)
            elif isinstance(event, GenerationEnd):
                output.end = event
                usage.add(event)
    return writer.whole([outputs[index] for index in sorted(outputs)], usage)


async def _write_stream(
    services: Services, read: Read, writer: ResponseWriter, stream: EventStream
) -> None:
    usage = Usage()
    try:
        async with aclosing(_run(services, read, writer)) as events:
            async for index, event in events:
                if isinstance(event, PromptProgress):
                    await stream.open()
                    continue
                if isinstance(event, GenerationEnd):
                    usage.add(event)
                await stream.write(writer.event(index, event))
        last = writer.finish(usage)
    except OmlxdError as error:
        if stream.give_up_unopened():
            raise
        log.warning("stream_failed", code=error.code, message=error.message)
        last = writer.failure(error)
    except Exception:
        if stream.give_up_unopened():
            raise
        log.exception("stream_failed")
        last = writer.failure(internal_error(writer.id))
    await stream.close(last)


async def _run(
    services: Services, read: Read, writer: ResponseWriter
) -> AsyncGenerator[tuple[int, TextEvent]]:
    """(number of the sequence, its next event), in the order in which the events come.

    The sequences run one after another when the model's settings limit how many requests run at
    the same time: the request has only one place.
    """
    requests = services.requests
    with requests.running(writer.id) as running, ExitStack() as ends:
        request = await read(running)
        writer.begin(request)
        requests.advance(running, RequestPhase.WAITING)
        async with services.pool.acquire(
            request.model_id, request_id=request.id, made_for=request.fingerprint
        ) as lease:

            def submit(sequence: SequenceSpec) -> AsyncIterator[TextEvent]:
                generation = lease.submit(sequence)
                requests.advance(running, None)
                ends.callback(requests.served.add, generation)
                ends.callback(generation.cancel)
                prompt = sequence.prompt if request.continues else ()
                detokenizer = Detokenizer(request.tokenizer, prompt=prompt)
                return text_events(generation, detokenizer, StopStrings(request.stops))

            limit = services.library.settings.of(request.model_id).max_concurrent_requests
            # A single sequence does without a task for each event.
            one_by_one = limit is not None or len(request.sequences) == 1
            streams = map(submit, request.sequences)
            async with aclosing(in_turn(streams) if one_by_one else interleave(streams)) as events:
                async for event in events:
                    yield event


async def in_turn(streams: Iterable[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """(number of the stream, its next item). A stream is taken when the one before has ended."""
    for index, stream in enumerate(streams):
        async for item in stream:
            yield index, item


async def interleave(begun: Iterable[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """(number of the stream, its next item), in the order in which the items come."""
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
