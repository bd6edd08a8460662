"""The parts of the daemon that the routes use. The application gets them once, when it is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from omlxd.api.keys import KeyRing
from omlxd.api.options import ApiOptions
from omlxd.enforcer.enforcer import Enforcer
from omlxd.engine.registry import RequestRegistry
from omlxd.errors import ShuttingDown, Starting
from omlxd.library.library import STILL_READING, Library
from omlxd.pool.pool import EnginePool
from omlxd.text.template import PromptMaker


class ServerPhase(Enum):
    """The phases of the daemon's life."""

    STARTING = "starting"
    READY = "ok"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Identity:
    """The server that answers.

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
        requests: all requests that run now.
        max_sequences: the most sequences, running and waiting, of one model; None: no limit.
        guard: the memory guard; None when there is none.
        guard_status: further keys of ``/status``.
        keys: the keys that may call; None when no key is needed.
    """

    identity: Identity
    options: ApiOptions
    library: Library
    pool: EnginePool
    prompts: PromptMaker
    phase: Callable[[], ServerPhase]
    requests: RequestRegistry
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
        """Raises Starting before the first scan of the models: a client that starts together with
        the daemon would remember an empty list. A folder that hangs does not delay this."""
        if not self.library.scanned:
            raise Starting(STILL_READING, retry_after=1.0)
