"""The only fake generation: a real one that plays a script instead of a device thread's events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from omlxd.backend.sequence import SequenceSpec
from omlxd.engine.generation import Generation, PromptProgress, TokensArrived
from omlxd.errors import OmlxdError

ScriptStep = PromptProgress | TokensArrived | Exception | asyncio.Event
"""The next step: an event, a failure, or a wait until the asyncio event is set."""


def a_sequence(name: str = "s", prompt: Sequence[int] = (1, 2, 3)) -> SequenceSpec:
    return SequenceSpec(name, tuple(prompt), max_tokens=100)


class FakeGeneration(Generation):
    """``read`` counts the events that were read, ``cancels`` the calls of ``cancel``."""

    def __init__(
        self,
        sequence: SequenceSpec,
        script: Sequence[ScriptStep] = (),
        *,
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__("m", sequence, 0.0, lambda _id, _error: None)
        self.spec = sequence
        self.read = self.cancels = 0
        self.cancelled_with: OmlxdError | None = None
        self._script = script
        self._on_read = on_read

    def __aiter__(self) -> AsyncIterator[PromptProgress | TokensArrived]:
        return self._play()

    async def _play(self) -> AsyncIterator[PromptProgress | TokensArrived]:
        self._on_read()
        for step in self._script:
            if self.over:
                return
            match step:
                case Exception():
                    raise step
                case asyncio.Event():
                    await step.wait()
                case PromptProgress():
                    self.prompt_done, self.cached_tokens = step.done, step.cached
                    self.read += 1
                    yield step
                case TokensArrived():
                    self.prompt_done = self.prompt_tokens
                    self.completion_tokens += len(step.tokens)
                    self.read += 1
                    yield step

    @property
    def cancelled(self) -> bool:
        return self.cancels > 0

    def cancel(self, error: OmlxdError | None = None) -> None:
        self.cancels += 1
        self.cancelled_with = self.cancelled_with or error
        super().cancel(error)
