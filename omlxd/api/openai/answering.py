"""Runs a request against pool and engine, and writes its answer: as a stream or in one piece."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, assert_never

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send

from omlxd.api.connection import Exchange, while_connected
from omlxd.api.errors import error_body, internal_error
from omlxd.api.open_requests import OpenRequest, Stage
from omlxd.api.openai.ask import Ask
from omlxd.api.services import Generation, Services
from omlxd.api.sse import EventStream
from omlxd.backend.sequence import FinishReason, NewToken, SequenceSpec
from omlxd.engine.answer import Answer, AnswerDelta, AnswerEnd, AnswerProgress, answer
from omlxd.errors import OmlxdError
from omlxd.text.detokenize import Detokenizer
from omlxd.text.stops import StopStrings

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Made once: json.dumps would make an encoder for every token.
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode

Prepare = Callable[[OpenRequest], Awaitable[tuple[Ask, "Wire"]]]
"""Finds the model, makes the tokens, and says how the answer is to be written."""


@dataclass(slots=True)
class Choice:
    """One answer, collected."""

    text: list[str] = field(default_factory=list)
    tokens: list[NewToken] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    finish: FinishReason | None = None


@dataclass(slots=True)
class Usage:
    """Counts over all choices of a request."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def add(self, end: AnswerEnd) -> None:
        self.prompt += end.prompt_tokens
        self.completion += end.completion_tokens
        self.cached += end.cached_tokens

    def wire(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Wire(Protocol):
    """How one endpoint writes: plain dictionaries for JSON."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """The chunk before the first of a choice, where there is one."""

    def delta(self, index: int, delta: AnswerDelta) -> dict[str, Any]: ...

    def ending(self, index: int, finish: FinishReason) -> dict[str, Any]: ...

    def head(self) -> dict[str, Any]:
        """What every chunk begins with, before its choices."""

    def whole(self, choices: Sequence[Choice], usage: dict[str, Any]) -> dict[str, Any]: ...


class Answering:
    """The way of one request, whichever endpoint it came by."""

    def __init__(self, services: Services, request_id: str) -> None:
        self._services = services
        self._id = request_id

    async def respond(
        self, request: Request, prepare: Prepare, *, stream: bool, usage: bool
    ) -> Response:
        """The answer as it was asked for. Raises as ``whole`` does."""
        if not stream:
            whole = await self.whole(request.receive, prepare)
            return Response(whole, media_type="application/json")
        return Exchange(lambda receive, send: self.stream(receive, send, prepare, usage=usage))

    async def whole(self, receive: Receive, prepare: Prepare) -> bytes:
        """The answer's JSON. Raises ClientGone, and whatever the request fails with."""
        return await while_connected(receive, self._collect(prepare))

    async def stream(self, receive: Receive, send: Send, prepare: Prepare, *, usage: bool) -> None:
        """Write the answer as server-sent events, with a usage chunk if ``usage``.

        The start is held back until the engine has begun, so what fails before (unknown model,
        too long, no room) is raised, for an answer with its own status. Only where a load, a
        queue or a prefill takes longer than ``hold_start`` does the stream open before, for the
        client's patience; a failure after that is an error event.
        """
        options = self._services.options
        stream = EventStream(
            send,
            interval=options.keep_alive_interval,
            hold_start=options.hold_start,
            send_timeout=options.send_timeout,
        )
        work = self._write_or_fail(stream, prepare, usage)
        await while_connected(receive, work, stream.keep_alive())

    async def _collect(self, prepare: Prepare) -> bytes:
        usage = Usage()
        with self._services.open_requests.tracked(self._id) as entry:
            ask, wire = await prepare(entry)
            choices = [Choice() for _ in ask.sequences]
            async with aclosing(self._answers(ask, entry)) as answers:
                async for index, item in answers:
                    match item:
                        case AnswerProgress():
                            pass
                        case AnswerDelta():
                            choices[index].text.append(item.text)
                            choices[index].tokens.extend(item.tokens)
                            choices[index].starts.extend(item.starts)
                        case AnswerEnd():
                            choices[index].finish = item.finish_reason
                            usage.add(item)
                        case unreachable:
                            assert_never(unreachable)
        return dumps(wire.whole(choices, usage.wire()))

    async def _write_or_fail(self, stream: EventStream, prepare: Prepare, usage: bool) -> None:
        # Strict clients want it in an error too. Without choices: one that finds them takes the
        # event for a chunk, and the error is lost (Zed).
        head: dict[str, Any] = {}
        try:
            await self._write(stream, prepare, usage, head)
        except OmlxdError as error:
            if stream.give_up_unopened():
                raise
            log.warning("stream_failed", code=error.code, message=error.message)
            await stream.event(error_body(error, head))
        except Exception:
            if stream.give_up_unopened():
                raise
            log.exception("stream_failed")
            await stream.event(error_body(internal_error(self._id), head))
        await stream.close()

    async def _write(
        self, stream: EventStream, prepare: Prepare, with_usage: bool, head: dict[str, Any]
    ) -> None:
        """Fills ``head`` as soon as it is known."""
        usage = Usage()
        opened: set[int] = set()
        with self._services.open_requests.tracked(self._id) as entry:
            ask, wire = await prepare(entry)
            head |= wire.head()
            async with aclosing(self._answers(ask, entry)) as answers:
                async for index, item in answers:
                    if isinstance(item, AnswerProgress):
                        await stream.open()
                        continue
                    if index not in opened:
                        opened.add(index)
                        opening = wire.opening(index)
                        if opening is not None:
                            await stream.event(dumps(opening))
                    if isinstance(item, AnswerDelta):
                        await stream.event(dumps(wire.delta(index, item)))
                    else:
                        usage.add(item)
                        await stream.event(dumps(wire.ending(index, item.finish_reason)))
        if with_usage:
            await stream.event(dumps({**head, "choices": [], "usage": usage.wire()}))

    async def _answers(self, ask: Ask, entry: OpenRequest) -> AsyncGenerator[tuple[int, Answer]]:
        """(choice, piece of its answer), the choices interleaved as they come.

        One after another where the model's settings bound how many run: a lease is one place.
        """
        open_requests = self._services.open_requests
        open_requests.advance(entry, Stage.WAITING)
        acquire = self._services.pool.acquire
        async with acquire(ask.model_id, request_id=ask.id, made_for=ask.made_for) as lease:
            with ExitStack() as running:

                def begin(sequence: SequenceSpec) -> AsyncIterator[Answer]:
                    generation = lease.submit(sequence)
                    running.callback(self._count, generation)
                    running.callback(generation.cancel)
                    prompt = sequence.prompt if ask.continues else ()
                    detokenizer = Detokenizer(ask.tokenizer, prompt=prompt)
                    return answer(generation, detokenizer, StopStrings(ask.stops))

                settings = self._services.library.settings.of(ask.model_id)
                bounded = settings.max_concurrent_requests is not None
                # One alone must not pay for a task per item.
                alone = bounded or len(ask.sequences) == 1
                answers = (in_turn if alone else interleave)(map(begin, ask.sequences))
                open_requests.advance(entry, Stage.ENGINE)
                async with aclosing(answers) as items:
                    async for item in items:
                        yield item

    def _count(self, generation: Generation) -> None:
        served = self._services.open_requests.served
        served.prompt += generation.prompt_done
        served.completion += generation.completion_tokens


async def in_turn(streams: Iterable[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """(number of the stream, its next item); each stream is taken when the one before has ended."""
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


def dumps(value: dict[str, Any]) -> bytes:
    return _encode(value).encode("utf-8", "replace")
