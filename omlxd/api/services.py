"""What the routes need of the daemon: given once, when the application is made."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from omlxd.api.keys import KeyRing
from omlxd.api.open_requests import OpenRequests
from omlxd.api.options import ApiOptions
from omlxd.backend.sequence import SequenceSpec
from omlxd.enforcer.enforcer import Enforcer
from omlxd.engine.generation import PromptProgress, RequestView, TokensArrived
from omlxd.engine.messages import ModelInfo
from omlxd.errors import OmlxdError, ShuttingDown, Starting
from omlxd.library.catalog import Catalog, CatalogModel
from omlxd.library.library import STILL_READING, Library
from omlxd.model_settings.options import ModelSettings
from omlxd.pool.admission import Fit
from omlxd.pool.status import ModelStatus
from omlxd.text.protocol import Tokenizer


class Generation(Protocol):
    """One running request; ends after the token with ``finish``, or raises what it failed with."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def prompt_done(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[PromptProgress | TokensArrived]: ...

    def cancel(self, error: OmlxdError | None = None) -> None: ...


class Lease(Protocol):
    @property
    def info(self) -> ModelInfo: ...

    def submit(self, sequence: SequenceSpec) -> Generation: ...


class Pool(Protocol):
    """The part of ``pool.EnginePool`` that the API calls."""

    @property
    def preloading(self) -> tuple[str, ...]: ...

    @property
    def troubles(self) -> tuple[str, ...]: ...

    async def change_settings(self, model_id: str, changes: Mapping[str, Any]) -> ModelSettings: ...

    async def tokenizer(self, model: CatalogModel) -> Tokenizer: ...

    def acquire(
        self, model_id: str, *, request_id: str, made_for: str | None = None
    ) -> AbstractAsyncContextManager[Lease]: ...

    async def load(self, model_id: str) -> ModelInfo: ...

    async def unload(self, model_id: str) -> int: ...

    def statuses(self) -> tuple[ModelStatus, ...]: ...

    def fit(self, model_id: str, *, context: int, concurrency: int) -> Fit: ...

    async def rescan(self) -> Catalog: ...


class Prompts(Protocol):
    """``text.template.PromptMaker``."""

    async def chat_prompt(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        *,
        model: str,
        template_arguments: Mapping[str, Any],
    ) -> list[int]: ...

    async def completion_prompt(
        self, tokenizer: Tokenizer, prompt: str | Sequence[int], *, param: str
    ) -> list[int]: ...


class ServerPhase(Enum):
    """Of the daemon's life."""

    STARTING = "starting"
    READY = "ok"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who answers.

    Attributes:
        host, port: as bound; the port is the real one, never 0.
        started_at: of ``clock``; clock: seconds that go on while the machine sleeps.
        unix_clock: seconds since 1970.
    """

    instance_id: str
    version: str
    host: str
    port: int
    started_at: float
    clock: Callable[[], float]
    unix_clock: Callable[[], float]

    @property
    def uptime(self) -> float:
        return max(self.clock() - self.started_at, 0.0)


@dataclass(frozen=True, slots=True)
class Services:
    """Everything behind the routes. The callables answer from memory and never wait.

    Attributes:
        requests: what the device thread holds now.
        open_requests: what the routes hold; others may count it.
        max_sequences: how many one model may have running and waiting; None: no limit.
        guard: the memory guard; None where there is none.
        guard_status: further keys of ``/status``.
        keys: who may call; None where nobody is asked for a key.
    """

    identity: Identity
    options: ApiOptions
    library: Library
    pool: Pool
    prompts: Prompts
    phase: Callable[[], ServerPhase]
    requests: Callable[[], tuple[RequestView, ...]]
    open_requests: OpenRequests
    max_sequences: int | None = None
    guard: Enforcer | None = None
    guard_status: Callable[[], Mapping[str, Any]] | None = None
    keys: KeyRing | None = None

    def refuse_unless_ready(self) -> None:
        """Raises Starting or ShuttingDown."""
        match self.phase():
            case ServerPhase.STARTING:
                raise Starting("The server is starting.", retry_after=1.0)
            case ServerPhase.DRAINING:
                raise ShuttingDown("The server is shutting down.", retry_after=5.0)
            case ServerPhase.READY:
                pass

    def refuse_until_scanned(self) -> None:
        """Raises Starting while nobody knows yet which models there are: a client that starts
        beside the daemon would remember that there are none. A folder that hangs does not count."""
        if not self.library.scanned:
            raise Starting(STILL_READING, retry_after=1.0)
