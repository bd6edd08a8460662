"""One request on the event loop: an asynchronous stream of the device thread's results."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum

from omlxd.backend.plan import Prefilled
from omlxd.backend.sequence import FinishReason, NewToken, SequenceSpec
from omlxd.errors import OmlxdError


class RequestPhase(Enum):
    PREPARING = "preparing"
    """Its template is being rendered, or its tokens are being made."""
    WAITING = "waiting"
    """Its model is not ready: it waits for memory or for the load."""
    QUEUED = "queued"
    """It waits for a place in the model's batch."""
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Prompt tokens in the cache so far, and their total; ``cached`` of them were not computed."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class TokensArrived:
    """The tokens since the last event, at least one; the very last token has ``finish`` set."""

    tokens: tuple[NewToken, ...]


@dataclass(frozen=True, slots=True)
class RequestView:
    """What ``/status`` shows of a request.

    Attributes:
        model_id: None before it is known.
        age: seconds since it arrived, or for a generation since it was submitted.
        prompt_total: prompt tokens; None before they are made.
    """

    id: str
    model_id: str | None
    phase: RequestPhase
    age: float
    prompt_done: int = 0
    prompt_total: int | None = None
    completion_tokens: int = 0


class Generation:
    """Iterate for PromptProgress and TokensArrived. For one reader on the event loop.

    The iteration ends after the token with ``finish``, or when ``cancel()`` was called without an
    error. It raises the error with which the request failed or was cancelled. Events that a slow
    reader has not fetched are merged, so nothing waits for the reader.
    """

    def __init__(
        self,
        model_id: str,
        sequence: SequenceSpec,
        submitted_at: float,
        cancel: Callable[[str, OmlxdError | None], None],
    ) -> None:
        self.id = sequence.id
        self.model_id = model_id
        self.submitted_at = submitted_at
        self.prompt_tokens = len(sequence.prompt)
        self.prompt_done = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.phase = RequestPhase.QUEUED
        self.finish: FinishReason | None = None
        self._cancel = cancel
        self._progress: PromptProgress | None = None
        self._tokens: list[NewToken] = []
        self._over = False
        self._cancelled = False
        self._error: OmlxdError | None = None
        self._news = asyncio.Event()
        self._closed = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[PromptProgress | TokensArrived]:
        return self

    async def __anext__(self) -> PromptProgress | TokensArrived:
        while True:
            if self._error is not None:
                raise self._error.again()
            if self._cancelled:
                raise StopAsyncIteration
            if self._progress is not None:
                progress, self._progress = self._progress, None
                return progress
            if self._tokens:
                tokens, self._tokens = tuple(self._tokens), []
                return TokensArrived(tokens)
            if self._over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()

    def cancel(self, error: OmlxdError | None = None) -> None:
        """End it: for the reader at once, on the device thread at the next step boundary.

        Safe at any time and any number of times; no effect on a generation that has ended.
        """
        if self._over:
            return
        self._cancelled = True
        self._end(error)
        self._cancel(self.id, error)

    @property
    def over(self) -> bool:
        """Nothing more will come, but some tokens may still be unread."""
        return self._over

    async def closed(self) -> None:
        """Wait until the device thread has let go of it."""
        await self._closed.wait()

    def view(self, now: float) -> RequestView:
        return RequestView(
            id=self.id,
            model_id=self.model_id,
            phase=self.phase,
            age=max(now - self.submitted_at, 0.0),
            prompt_done=self.prompt_done,
            prompt_total=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
        )

    # Called by the engine

    def prefilled(self, event: Prefilled) -> None:
        self.phase = RequestPhase.DECODE if event.done >= event.total else RequestPhase.PREFILL
        self.prompt_done = event.done
        self.cached_tokens = event.cached
        if not self._over:
            self._progress = PromptProgress(event.done, event.total, event.cached)
            self._news.set()

    def token(self, token: NewToken) -> None:
        """Its next token. A token that comes after a cancel counts, but is never read."""
        self.completion_tokens += 1
        if self._over:
            return
        self.phase = RequestPhase.DECODE
        self._tokens.append(token)
        self._news.set()
        if token.finish is not None:
            self.finish = token.finish
            self._end(None)

    def ended(self, error: OmlxdError | None) -> None:
        """The device thread is done with it; ``error`` is None after a finish or a cancel."""
        if not self._over:
            self._end(error)
        self._closed.set()

    def _end(self, error: OmlxdError | None) -> None:
        self._over = True
        self._error = error
        self._news.set()
