"""Loads on the device thread: one at a time, piece by piece. A failed load leaves nothing."""

import traceback
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass

import structlog

from omlxd.backend.protocol import Backend, LoadedModel, ModelLoad
from omlxd.engine.messages import Event, Load, LoadFailed, LoadProgress
from omlxd.errors import EngineDied, ModelLoadCancelled, ModelLoadFailed, OmlxdError

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Loading:
    command: Load
    load: ModelLoad | None = None
    """None until its files have been checked."""


class LoadQueue:
    """Loads in the order in which they came; ``emit`` receives their progress and failures."""

    def __init__(self, backend: Backend, emit: Callable[[Event], None]) -> None:
        self._backend = backend
        self._emit = emit
        self._loads: deque[_Loading] = deque()

    def __len__(self) -> int:
        return len(self._loads)

    def add(self, command: Load) -> None:
        self._loads.append(_Loading(command))

    def cancel(self, load_id: int) -> None:
        for loading in self._loads:
            if loading.command.load_id == load_id:
                self._loads.remove(loading)
                model_id = loading.command.model_id
                self._end(loading, ModelLoadCancelled(f"Loading '{model_id}' was cancelled."))
                return

    def end_all(self, error: OmlxdError) -> None:
        while self._loads:
            self._end(self._loads.popleft(), error.again())

    def piece(self, present: Container[str]) -> tuple[Load, LoadedModel] | None:
        """Load the next piece of the oldest load. Only one load at a time is at its memory peak.

        Returns the model after its last piece. A model that is ``present`` is not loaded again.
        Raises EngineDied when the device is lost.
        """
        loading = self._loads[0]
        error: OmlxdError
        try:
            model = self._advance(loading, present)
        except EngineDied:
            raise
        except OmlxdError as failure:
            error = failure
        except Exception as failure:  # a load that fails must not end the thread
            log.exception("load_failed", model=loading.command.model_id)
            error = ModelLoadFailed(
                f"Loading '{loading.command.model_id}' failed "
                f"({type(failure).__name__}: {failure})."
            )
            traceback.clear_frames(failure.__traceback__)
        else:
            if model is None:
                return None
            self._loads.popleft()
            return loading.command, model
        self._loads.popleft()
        self._end(loading, error)
        return None

    def _advance(self, loading: _Loading, present: Container[str]) -> LoadedModel | None:
        command = loading.command
        if loading.load is None:
            if command.model_id in present:
                raise ModelLoadFailed(f"Model '{command.model_id}' is loaded already.")
            loading.load = self._backend.begin_load(command.path)
        load = loading.load
        model = load.advance()
        self._emit(LoadProgress(command.load_id, load.loaded_bytes, load.total_bytes))
        return model

    def _end(self, loading: _Loading, error: OmlxdError) -> None:
        if loading.load is not None:
            loading.load.abandon()
            loading.load = None
        _forget_frames(error)
        self._backend.reclaim()
        self._emit(LoadFailed(loading.command.load_id, error))


def _forget_frames(error: BaseException) -> None:
    """Drop the traceback: the variables of its frames keep weights alive."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
