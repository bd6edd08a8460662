"""A runtime in plain Python: deterministic tokens, injected failures, gates to wait at.

Everything a test sets here may be set while the device thread runs.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from omlxd.backend.plan import EnteringSequence, Prefilled, StepPlan, StepResult, step_failure
from omlxd.backend.protocol import BackendInfo, EngineKind
from omlxd.backend.sequence import FinishReason, NewToken, SequenceSpec
from omlxd.errors import GenerationFailed, InvalidRequest, ModelLoadFailed, OmlxdError
from omlxd.policy.readings import AllocatorSample

VOCAB = 1000
BYTES_PER_TOKEN = 100


class FakeClock:
    """A clock in seconds that only tests move."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def fake_token(prompt: Sequence[int], index: int, vocab: int = VOCAB) -> int:
    """The token with this ``index`` in the fake model's answer to ``prompt``."""
    digest = hashlib.blake2b(repr((tuple(prompt), index)).encode(), digest_size=4).digest()
    return int.from_bytes(digest) % vocab


@dataclass
class FakeModelPlan:
    """The behaviour of one model. ``FakeBackend.plans`` has it by the model's path."""

    pieces: int = 3
    piece_bytes: int = 1000
    load_error: Exception | None = None
    """While set, piece ``load_error_at`` (0 is the first) of every load raises it."""
    load_error_at: int = 0
    begin_error: Exception | None = None
    """Raised when the load begins and reads the files."""
    step_error: BaseException | None = None
    """Raised by the next step, once."""
    insert_error: Exception | None = None
    """Raised by the next insert, once."""
    failing: set[str] = field(default_factory=set)
    """Ids of requests that fail at their first token; other requests go on."""
    script: dict[tuple[int, ...], Sequence[int]] = field(default_factory=dict)
    """Prompt -> tokens of its answer, instead of those of ``fake_token``."""
    decode_seconds: float = 0.0
    prefill_seconds: float = 0.0
    """Seconds per prompt token. They move the backend's clock if it can be moved."""
    piece_seconds: float = 0.0
    chunks: list[int] = field(default_factory=list)
    """For each step with prefill: the most prompt tokens of one sequence."""
    removals: list[tuple[str, ...]] = field(default_factory=list)
    """For each plan that removed requests: the requests it removed."""


class FakeBatch:
    def __init__(self, model: "FakeModel") -> None:
        self._model = model
        self._backend = model.backend
        self.sequences: dict[str, SequenceSpec] = {}
        self.done: dict[str, int] = {}
        """How many prompt tokens are in the cache."""
        self.said: dict[str, int] = {}
        self.closed = False

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.leave:
            self._model.plan.removals.append(plan.leave)
        self._remove(plan.leave)
        failed = [(s.spec.id, error) for s in plan.enter if (error := self._insert(s)) is not None]
        prefilled: tuple[Prefilled, ...] = ()
        tokens: tuple[tuple[str, NewToken], ...] = ()
        if self.sequences and (plan.decode or plan.prefill):
            self._step(plan)
            tokens, failed_alone = self._decode()
            failed += failed_alone
            prefilled = self._prefill(plan)
        self._backend.note_cache()
        return StepResult(
            prefilled, tokens, tuple(failed), left=plan.leave, cache_bytes=self.cache_bytes
        )

    def _insert(self, entering: EnteringSequence) -> OmlxdError | None:
        behaviour, sequence = self._model.plan, entering.spec
        if behaviour.insert_error is not None:
            error, behaviour.insert_error = behaviour.insert_error, None
            return step_failure(error)
        if any(not 0 <= t < VOCAB for t in sequence.prompt):
            return InvalidRequest("a token id is outside the vocabulary", param="prompt")
        self.sequences[sequence.id] = sequence
        self.done[sequence.id] = 0
        return None

    def _step(self, plan: StepPlan) -> None:
        behaviour = self._model.plan
        self._backend.at("step", self._model.path)
        if plan.prefill:
            behaviour.chunks.append(max(tokens for _, tokens in plan.prefill))
        if behaviour.step_error is not None:
            error, behaviour.step_error = behaviour.step_error, None
            raise error

    def _decode(self) -> tuple[tuple[tuple[str, NewToken], ...], list[tuple[str, OmlxdError]]]:
        tokens: list[tuple[str, NewToken]] = []
        failed: list[tuple[str, OmlxdError]] = []
        for i in list(self.said):
            if i in self._model.plan.failing:
                failed.append((i, GenerationFailed("injected")))
                self._remove([i])
                continue
            token = self._next(self.sequences[i], self.said[i])
            self.said[i] += 1
            tokens.append((i, token))
            if token.finish is not None:
                self._remove([i])
        if tokens:
            self._backend.pass_time(self._model.plan.decode_seconds)
        return tuple(tokens), failed

    def _next(self, sequence: SequenceSpec, index: int) -> NewToken:
        script = self._model.plan.script.get(sequence.prompt)
        if script is None or index >= len(script):
            value = fake_token(sequence.prompt, index)
        else:
            value = script[index]
        finish = None
        if value in sequence.stop_tokens:
            finish = FinishReason.STOP
        elif index + 1 >= sequence.max_tokens:
            finish = FinishReason.LENGTH
        if sequence.top_logprobs is None:
            return NewToken(value, finish=finish)
        top = tuple(((value + n) % VOCAB, -0.5 - n) for n in range(sequence.top_logprobs))
        return NewToken(value, -0.5, top, finish)

    def _prefill(self, plan: StepPlan) -> tuple[Prefilled, ...]:
        progress = []
        for i, tokens in plan.prefill:
            if i not in self.sequences:
                continue
            total = len(self.sequences[i].prompt)
            self.done[i] += tokens
            self._backend.pass_time(self._model.plan.prefill_seconds * tokens)
            if self.done[i] == total:
                self.said[i] = 0
            progress.append(Prefilled(i, self.done[i], total))
        return tuple(progress)

    def _remove(self, ids: Sequence[str]) -> None:
        for i in ids:
            self.sequences.pop(i, None)
            self.done.pop(i, None)
            self.said.pop(i, None)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def cache_bytes(self) -> int:
        return BYTES_PER_TOKEN * (sum(self.done.values()) + sum(self.said.values()))

    def close(self) -> None:
        self.sequences.clear()
        self.done.clear()
        self.said.clear()
        self.closed = True


class FakeModel:
    engine_kind = EngineKind.GENERATE

    def __init__(self, backend: "FakeBackend", path: str) -> None:
        self.backend = backend
        self.path = path
        self.plan = backend.plan(path)
        self.batches: list[FakeBatch] = []
        self.closed = False

    @property
    def weights_bytes(self) -> int:
        return self.plan.pieces * self.plan.piece_bytes

    @property
    def vocab_size(self) -> int:
        return VOCAB

    @property
    def cache_kinds(self) -> tuple[str, ...]:
        return ("KVCache",)

    def new_batch(self, *, max_sequences: int, max_prefills: int) -> FakeBatch:
        batch = FakeBatch(self)
        self.batches.append(batch)
        return batch

    def close(self) -> None:
        self.closed = True
        self.backend.release(self)


class FakeLoad:
    def __init__(self, backend: "FakeBackend", path: str) -> None:
        self._backend = backend
        self._path = path
        self._plan = backend.plan(path)
        self._done = 0
        self.abandoned = False

    @property
    def total_bytes(self) -> int:
        return self._plan.pieces * self._plan.piece_bytes

    @property
    def loaded_bytes(self) -> int:
        return self._done * self._plan.piece_bytes

    def advance(self) -> FakeModel | None:
        self._backend.at("piece", self._path)
        plan = self._plan
        if plan.load_error is not None and self._done == plan.load_error_at:
            raise plan.load_error
        self._done += 1
        self._backend.weights += plan.piece_bytes
        self._backend.pass_time(plan.piece_seconds)
        if self._done < plan.pieces:
            return None
        model = FakeModel(self._backend, self._path)
        self._backend.models[self._path] = model
        return model

    def abandon(self) -> None:
        self._backend.weights -= self.loaded_bytes
        self._backend.pool += self.loaded_bytes
        self._done = 0
        self.abandoned = True


class FakeBackend:
    """Memory: ``weights`` and the caches are active; freed bytes go to ``pool``."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.clock = clock
        self.plans: dict[str, FakeModelPlan] = {}
        self.models: dict[str, FakeModel] = {}
        self.loads: list[FakeLoad] = []
        self.weights = 0
        self.pool = 0
        self.peak = 0
        self.reclaims = 0
        self.stopped = False
        self.start_error: BaseException | None = None
        self.trail: list[tuple[str, str]] = []
        """("step" or "piece" or "reclaim", path), in order."""
        self.gate: threading.Event | None = None
        """The thread waits for this event, if there is one, before each step and piece."""
        self.at_gate = threading.Event()
        """Set while the thread waits."""
        self.on: Callable[[str, str], None] = lambda what, path: None
        """Called on the device thread before each step and piece."""
        self.thread: threading.Thread | None = None
        self.info = BackendInfo("fake", (("fake", "1"),), "no device", None, None, None)

    def plan(self, path: str) -> FakeModelPlan:
        return self.plans.setdefault(path, FakeModelPlan())

    def script(self, path: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Let the model at ``path`` answer ``prompt`` with these tokens."""
        self.plan(path).script[tuple(prompt)] = tuple(answer)

    def start(self) -> BackendInfo:
        self.thread = threading.current_thread()
        if self.start_error is not None:
            raise self.start_error
        return self.info

    def begin_load(self, path: str) -> FakeLoad:
        plan = self.plan(path)
        if plan.begin_error is not None:
            raise plan.begin_error
        load = FakeLoad(self, path)
        self.loads.append(load)
        return load

    def sample(self, now: float) -> AllocatorSample:
        self.note_cache()
        return AllocatorSample(now, self.active, self.pool, self.peak)

    def reclaim(self) -> int:
        self.trail.append(("reclaim", ""))
        self.reclaims += 1
        freed, self.pool = self.pool, 0
        return freed

    def stop(self) -> None:
        self.stopped = True

    @property
    def active(self) -> int:
        batches = (b for m in self.models.values() for b in m.batches)
        return self.weights + sum(b.cache_bytes for b in batches)

    def release(self, model: FakeModel) -> None:
        self.weights -= model.weights_bytes
        self.pool += model.weights_bytes
        if self.models.get(model.path) is model:
            del self.models[model.path]

    def note_cache(self) -> None:
        self.peak = max(self.peak, self.active)

    def at(self, what: str, path: str) -> None:
        self.trail.append((what, path))
        self.on(what, path)
        if self.gate is not None and not self.gate.is_set():
            self.at_gate.set()
            self.gate.wait(10)
            self.at_gate.clear()

    def pass_time(self, seconds: float) -> None:
        if isinstance(self.clock, FakeClock):
            self.clock.advance(seconds)


def load_failure(message: str = "injected") -> ModelLoadFailed:
    return ModelLoadFailed(message)


def sequence(
    request_id: str, prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 4, **fields: Any
) -> SequenceSpec:
    spec = SequenceSpec(request_id, tuple(prompt), max_tokens)
    return replace(spec, **fields)
