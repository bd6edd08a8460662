"""What the daemon gives to the pool: the engine, clocks, and the state of the memory guard."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlxd.engine.handle import Engine
from omlxd.policy.eviction import Eviction
from omlxd.policy.memory_state import MemoryState
from omlxd.text.own_thread import OwnThread
from omlxd.text.protocol import Tokenizer
from omlxd.timing import CallLater, loop_call_later


def _ignore(*event: object) -> None:
    """The default where no one listens."""


def _unknown() -> None:
    """The default where nothing is known."""


@dataclass(frozen=True, slots=True)
class PoolPorts:
    """Everything that the daemon gives to the pool.

    Attributes:
        load_tokenizer: called in a thread with a model's folder.
        own_thread: makes that thread.
        clock: seconds, without the time that the machine sleeps.
        call_later: runs a function on the loop after some seconds.
        wake: called when something changed that the guard should look at.
        usage: bytes this process uses now, None where unknown; a cheap call.
        release_memory: gives freed heap pages back to the system; called in a thread.
        memory: the latest state of the guard; while it is None, every load is admitted.
        state: folder of the pool's state files; None: the pool keeps none.
        most_waiting: requests that may wait for a lease on one model; None: any number.
        on_eviction: called when a model is asked to leave to make room for a load, and again with
            the bytes that came free once it has left.
        died: called when a task of the pool ended with an exception, so that the daemon ends.
    """

    engine: Engine
    load_tokenizer: Callable[[str], Tokenizer]
    clock: Callable[[], float]
    call_later: CallLater = loop_call_later
    wake: Callable[[], None] = _ignore
    usage: Callable[[], int | None] = _unknown
    release_memory: Callable[[], object] | None = None
    memory: Callable[[], MemoryState | None] = _unknown
    state: Path | None = None
    on_eviction: Callable[[Eviction], None] = _ignore
    died: Callable[[BaseException], None] = _ignore
    most_waiting: int | None = None
    own_thread: Callable[[str, Callable[[], Any]], OwnThread[Any]] = OwnThread
