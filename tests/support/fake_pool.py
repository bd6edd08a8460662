"""Pool, prompts and generations that follow a test's script; tokens are bytes."""

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.types import ASGIApp

from omlxd.api.app import create_app
from omlxd.api.keys import KeyRing
from omlxd.api.options import ApiOptions
from omlxd.api.services import Identity, ServerPhase, Services
from omlxd.backend.sequence import FinishReason, NewToken, SequenceSpec
from omlxd.engine.generation import PromptProgress, TokensArrived
from omlxd.engine.messages import ModelInfo
from omlxd.engine.registry import RequestRegistry
from omlxd.errors import ModelNotFound, OmlxdError
from omlxd.library.catalog import Catalog, CatalogModel, ModelKind, RootState, RootStatus
from omlxd.model_settings.options import ModelSettings
from omlxd.model_settings.settings import KEYS, check_change
from omlxd.policy.tiers import Tier
from omlxd.pool.admission import Fit, TierFit, Verdict
from omlxd.pool.status import ModelStatus
from omlxd.text.options import TextOptions
from omlxd.text.protocol import Joining
from omlxd.text.template import PromptMaker
from tests.support.fake_generation import FakeGeneration, ScriptStep

EOS = 256
FIT = Fit(
    model_id="",
    context=1,
    concurrency=1,
    weights_bytes=1000,
    weights_measured=False,
    loaded=False,
    kv_bytes=200,
    prefill_bytes=30,
    unknown=None,
    needed_bytes=1230,
    tier=Tier.BALANCED,
    tiers={Tier.BALANCED: TierFit(Verdict.AFTER_EVICTIONS, 5000, "static", ("org/other",))},
)
FACTS = ModelInfo(weights_bytes=1000, vocab_size=300, cache_kinds=("KVCache",))


class ByteTokenizer:
    """Token ids are bytes; 256 ends an answer."""

    vocab_size = 257
    stop_tokens = frozenset({EOS})
    special_tokens = frozenset({EOS})
    joining: Joining = "bytes"

    def __init__(self, *, has_chat_template: bool = True) -> None:
        self.has_chat_template = has_chat_template

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        return bytes(t for t in tokens if t < 256).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return b"<eos>" if token == EOS else bytes([token])

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_arguments: Mapping[str, Any],
        check: Callable[[int], None],
    ) -> str:
        return "".join(f"{m['role']}: {m['content']}\n" for m in messages)


# Steps of a script


@dataclass(frozen=True)
class Progress:
    done: int
    total: int
    cached: int = 0


@dataclass(frozen=True)
class Say:
    """The tokens of ``text`` in one event; ``split``: one event per token."""

    text: str | bytes
    split: bool = True


@dataclass(frozen=True)
class End:
    reason: FinishReason = FinishReason.STOP
    """STOP comes as a stop token; LENGTH marks the last token before it."""


@dataclass(frozen=True)
class Fail:
    error: Exception


@dataclass(frozen=True)
class Wait:
    """Nothing happens until ``gate`` is set."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)


Step = Progress | Say | End | Fail | Wait


def played(spec: SequenceSpec, script: Sequence[Step]) -> Iterator[ScriptStep]:
    """The steps of a generation of ``spec`` that follows ``script``."""
    for step in script:
        match step:
            case Progress():
                yield PromptProgress(step.done, step.total, step.cached)
            case Say():
                data = step.text.encode() if isinstance(step.text, str) else step.text
                for piece in [bytes([b]) for b in data] if step.split else [data]:
                    yield TokensArrived(tuple(_new_token(spec, b) for b in piece))
            case End():
                token = EOS if step.reason is FinishReason.STOP else ord(".")
                yield TokensArrived((_new_token(spec, token, step.reason),))
                return
            case Fail():
                yield step.error
            case Wait():
                yield step.gate


def _new_token(spec: SequenceSpec, token: int, finish: FinishReason | None = None) -> NewToken:
    if spec.top_logprobs is None:
        return NewToken(token, finish=finish)
    best = tuple((token - i, -0.5 - i) for i in range(spec.top_logprobs))
    return NewToken(token, logprob=-0.5, top=best, finish=finish)


def model(name: str = "org/tiny", **changes: Any) -> CatalogModel:
    return replace(
        CatalogModel(
            id=name,
            path=f"/models/{name}",
            kind=ModelKind.LANGUAGE,
            model_type="llama",
            architecture="LlamaForCausalLM",
            weights_bytes=1000,
            vision_bytes=0,
            context_length=1000,
            quantization=None,
            fingerprint="f",
            created=1_700_000_000,
            config={},
            generation={},
        ),
        **changes,
    )


class ScriptedLease:
    def __init__(self, pool: "FakePool") -> None:
        self.info = FACTS
        self._pool = pool

    def submit(self, sequence: SequenceSpec) -> FakeGeneration:
        if self._pool.submit_error is not None:
            raise self._pool.submit_error
        hello: Sequence[Step] = [Say("hello"), End()]
        script = self._pool.scripts.popleft() if self._pool.scripts else hello
        steps = tuple(played(sequence, script))
        generation = FakeGeneration(sequence, steps, on_read=self._pool.reading.set)
        self._pool.generations.append(generation)
        return generation


class OneForAll:
    """Every model has the settings of ``pool``; the first model is the default."""

    def __init__(self, pool: "FakePool") -> None:
        self._pool = pool

    @property
    def default(self) -> str | None:
        return next(iter(self._pool.catalog.models), None)

    def of(self, model_id: str) -> ModelSettings:
        return self._pool.model_settings

    def origin(self, model_id: str) -> Mapping[str, str]:
        return {key: "api" for key in KEYS if getattr(self.of(model_id), key) is not None}


class FakePool:
    """Both the library and the pool.

    Each generation takes the next of ``scripts``. ``acquire`` waits until ``gate`` is set.
    """

    def __init__(self, *models: CatalogModel) -> None:
        known = models or (model(),)
        roots = (RootStatus("/models", RootState.OK),)
        self.catalog = Catalog({m.id: m for m in known}, {}, (), roots)
        self.scanned = True
        self.preloading: tuple[str, ...] = ()
        self.troubles: tuple[str, ...] = ()
        self.scripts: deque[Sequence[Step]] = deque()
        self.generations: list[FakeGeneration] = []
        self.gate: asyncio.Event | None = None
        self.acquire_error: Exception | None = None
        self.submit_error: OmlxdError | None = None
        self.tokenizer_made: Any = ByteTokenizer()
        self.model_settings = ModelSettings()
        self.acquired = 0
        self.made_for: str | None = None
        self.released = 0
        self.waiting = asyncio.Event()
        self.reading = asyncio.Event()
        self.unloads: list[str] = []
        self.changes: list[tuple[str, Mapping[str, Any]]] = []
        self.rescans = 0
        self.fit_asked: tuple[str, int, int] | None = None
        self.fit_answer = FIT
        self.settings = OneForAll(self)

    def resolve(self, name: str | None) -> CatalogModel:
        if name is None:
            return next(iter(self.catalog.models.values()))
        if name not in self.catalog.models:
            raise ModelNotFound(name, ["org/tiny"])
        return self.catalog.models[name]

    def settings_id(self, name: str) -> str:
        if name in self.catalog.broken:
            return name
        return self.resolve(name).id

    async def change_settings(self, model_id: str, changes: Mapping[str, Any]) -> ModelSettings:
        """All models share one set of settings, which is checked like the real ones."""
        checked = {key: check_change(key, value) for key, value in changes.items()}
        self.changes.append((model_id, checked))
        self.model_settings = replace(self.model_settings, **checked)
        return self.model_settings

    def fit(self, model_id: str, *, context: int, concurrency: int) -> Fit:
        self.fit_asked = (model_id, context, concurrency)
        return replace(self.fit_answer, model_id=model_id, context=context, concurrency=concurrency)

    async def rescan(self) -> Catalog:
        self.rescans += 1
        return self.catalog

    def context_length(self, model_id: str) -> int | None:
        own = self.catalog.models[model_id].context_length
        wished = self.model_settings.context_length
        return own if wished is None or own is None else min(own, wished)

    async def tokenizer(self, model: CatalogModel) -> Any:
        return self.tokenizer_made

    @asynccontextmanager
    async def acquire(
        self, model_id: str, *, request_id: str, made_for: str | None = None
    ) -> AsyncIterator[ScriptedLease]:
        self.made_for = made_for
        self.waiting.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.acquire_error is not None:
            raise self.acquire_error
        self.acquired += 1
        try:
            yield ScriptedLease(self)
        finally:
            self.released += 1

    async def load(self, model_id: str) -> ModelInfo:
        self.waiting.set()
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.released += 1
                raise
        return FACTS

    async def unload(self, model_id: str) -> int:
        self.unloads.append(model_id)
        return 1000

    def statuses(self) -> tuple[ModelStatus, ...]:
        return tuple(
            ModelStatus(
                m.id,
                "absent",
                m.kind,
                context_length=self.context_length(m.id),
                default=m.id == self.settings.default,
            )
            for m in self.catalog.models.values()
        )


@dataclass
class World:
    """The parts of a fake daemon. Change them before or while requests run."""

    pool: FakePool = field(default_factory=FakePool)
    options: ApiOptions = field(default_factory=lambda: ApiOptions(hold_start=LONG))
    phase: ServerPhase = ServerPhase.READY
    now: float = 100.0
    guard: Mapping[str, Any] | None = None
    host: str = "127.0.0.1"
    port: int = 8484
    keys: KeyRing | None = None
    max_sequences: int | None = None

    @functools.cached_property
    def requests(self) -> RequestRegistry:
        return RequestRegistry(lambda: self.now)

    @functools.cached_property
    def app(self) -> ASGIApp:
        """Made once: later changes of the options have no effect."""
        return create_app(self.services())

    def services(self) -> Services:
        identity = Identity(
            instance_id="i-1",
            version="1.2.3",
            host=self.host,
            port=self.port,
            started_at=40.0,
            clock=lambda: self.now,
            unix_clock=lambda: 1_760_000_000.5,
        )
        guard = self.guard
        return Services(
            identity=identity,
            options=self.options,
            library=self.pool,  # type: ignore[arg-type]
            pool=self.pool,  # type: ignore[arg-type]
            prompts=PromptMaker(TextOptions()),
            phase=lambda: self.phase,
            requests=self.requests,
            guard_status=None if guard is None else lambda: guard,
            keys=self.keys,
            max_sequences=self.max_sequences,
        )


LONG = 60.0
