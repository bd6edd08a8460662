"""A Mac in plain Python: its memory, its kernel's answers, and a Metal runtime on it.

The kernel answers with bytes like the real one, so the unchanged Darwin host can read them.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from omlxd.backend.plan import Prefilled, StepPlan, StepResult
from omlxd.backend.protocol import BackendInfo, EngineKind
from omlxd.backend.sequence import FinishReason, NewToken, SequenceSpec
from omlxd.host.darwin_structs import Failed, Filled
from omlxd.policy.readings import AllocatorSample
from omlxd.units import GiB, MiB

PAGE = 16384
DRIVER_HOLDS = 1.5
"""Seconds for which the driver still holds memory that the allocator gave back."""
NORMAL, WARNING, CRITICAL = 1, 2, 4


@dataclass(frozen=True)
class ModelShape:
    """The memory of a model in bytes: weights, KV per token, and transient per prompt token."""

    weights: int
    kv_token: int
    transient_token: int = 0
    pieces: int = 8
    piece_seconds: float = 0.5
    decode_seconds: float = 0.25
    prefill_seconds: float = 0.001
    """Per prompt token."""


@dataclass
class Mac:
    """Bytes. ``apps``: used by other programs; ``idle_apps``: not touched by them for long."""

    total: int
    clock: Callable[[], float]
    wired: int = 0
    apps: int = 0
    idle_apps: int = 0
    file_cache: int = 0
    own: int = 300 * MiB
    """The daemon's memory outside of the GPU."""
    active: int = 0
    pool: int = 0
    peak: int = 0
    wired_limit_mb: int = 0
    forced_pressure: int | None = None
    held: list[tuple[float, int]] = field(default_factory=list)

    @property
    def driver_held(self) -> int:
        now = self.clock()
        self.held = [(until, size) for until, size in self.held if until > now]
        return sum(size for _, size in self.held)

    @property
    def graphics(self) -> int:
        return self.active + self.pool + self.driver_held

    @property
    def footprint(self) -> int:
        return self.own + self.graphics

    @property
    def working_set(self) -> int:
        """The working set that Metal recommends, by default."""
        return self.total * 3 // 4 if self.total > 32 * GiB else self.total * 2 // 3

    @property
    def demand(self) -> int:
        return self.wired + self.footprint + self.apps + self.idle_apps

    @property
    def swapped(self) -> int:
        return max(0, self.demand - self.total)

    @property
    def pressure(self) -> int:
        if self.forced_pressure is not None:
            return self.forced_pressure
        return WARNING if self.demand > 0.97 * self.total else NORMAL

    def queues(self, more_apps: int = 0) -> tuple[int, int, int, int, int]:
        """(free, active, inactive, wired, file-backed)"""
        wired = self.wired + self.graphics
        apps, idle = self.apps + more_apps, self.idle_apps
        over = max(0, self.demand + more_apps - self.total)
        idle_out = min(idle, over)
        idle, apps = idle - idle_out, max(0, apps - (over - idle_out))
        room = max(0, self.total - wired - self.own - apps - idle)
        files = min(self.file_cache, room)
        inactive = idle + files * 7 // 10
        return room - files, apps + self.own + files - files * 7 // 10, inactive, wired, files

    # The allocator

    def allocate(self, size: int) -> None:
        """Take from the pool first, as MLX does."""
        self.pool -= min(self.pool, size)
        self.active += size
        self.peak = max(self.peak, self.active)

    def free(self, size: int) -> None:
        self.active -= size
        self.pool += size

    def reclaim(self) -> int:
        freed, self.pool = self.pool, 0
        if freed:
            self.held.append((self.clock() + DRIVER_HOLDS, freed))
        return freed


class SimulatedKernel:
    """Answers like the C calls of a Mac, or fails when a test says so."""

    def __init__(self, mac: Mac) -> None:
        self.mac = mac
        self.counters_fail = False
        self.footprint_fails = False
        self.psutil_fails = False
        self.frozen = False
        self.spikes: list[int] = []
        """Extra bytes of other programs: each read of the host counters shows and removes one."""
        self.host_calls = 0
        self._raw = b""

    def page_size(self) -> int:
        return PAGE

    def host_counters(self) -> Filled | Failed:
        if self.counters_fail:
            return Failed("host_statistics64", "kern_return 5")
        if not (self.frozen and self._raw):
            self.host_calls += 1
            self._raw = self._fill(self.spikes.pop(0) if self.spikes else 0)
        return Filled(self._raw, 38)

    def _fill(self, more_apps: int) -> bytes:
        free, active, inactive, wired, files = self.mac.queues(more_apps)
        data = bytearray(152)
        struct.pack_into("<4I", data, 0, *(n // PAGE for n in (free, active, inactive, wired)))
        struct.pack_into("<Q", data, 48, 1000 * self.host_calls)
        struct.pack_into("<3I", data, 128, self.mac.swapped // 4 // PAGE, 0, files // PAGE)
        return bytes(data)

    def task_vm_info(self) -> Filled | Failed:
        if self.footprint_fails:
            return Failed("task_info", "kern_return 4")
        data = bytearray(344)
        struct.pack_into("<Q", data, 144, self.mac.footprint)
        struct.pack_into("<q", data, 272, self.mac.graphics)
        return Filled(bytes(data), 86)

    def resource_usage(self, flavor: int, size: int) -> bytes | Failed:
        if self.footprint_fails:
            return Failed("proc_pid_rusage", "EPERM")
        data = bytearray(size)
        struct.pack_into("<Q", data, 72, self.mac.footprint)
        return bytes(data)

    def sysctl(self, name: str) -> bytes | Failed:
        mac = self.mac
        match name:
            case "hw.memsize":
                return mac.total.to_bytes(8, "little")
            case "iogpu.wired_limit_mb":
                return mac.wired_limit_mb.to_bytes(4, "little")
            case "kern.memorystatus_vm_pressure_level":
                return mac.pressure.to_bytes(4, "little")
            case "vm.swapusage":
                return struct.pack("<QQQII", 8 * GiB, 0, mac.swapped, PAGE, 1)
            case _:
                return Failed(name, "ENOENT")

    def relieve_malloc(self) -> int:
        return 0

    def available(self) -> int | None:
        """The available memory as psutil would report it."""
        if self.psutil_fails:
            return None
        free, _, inactive, _, _ = self.mac.queues()
        return free + inactive


class SimulatedBackend:
    """A runtime with meaningless tokens; ``spent`` is the time that its calls took."""

    def __init__(self, mac: Mac, shapes: dict[str, ModelShape]) -> None:
        self.mac = mac
        self.shapes = shapes
        """By path."""
        self.spent = 0.0
        self.slowness = 1.0
        self.steps = 0
        self.loads = 0

    def start(self) -> BackendInfo:
        return BackendInfo("simulated", (), "no device", self.mac.working_set, None, None)

    def begin_load(self, path: str) -> "_Load":
        self.loads += 1
        return _Load(self, self.shapes[path])

    def sample(self, now: float) -> AllocatorSample:
        return AllocatorSample(now, self.mac.active, self.mac.pool, self.mac.peak)

    def reclaim(self) -> int:
        return self.mac.reclaim()

    def stop(self) -> None:
        pass

    def take(self, seconds: float) -> None:
        self.spent += seconds * self.slowness


class _Load:
    def __init__(self, backend: SimulatedBackend, shape: ModelShape) -> None:
        self._backend = backend
        self._shape = shape
        self.loaded_bytes = 0

    @property
    def total_bytes(self) -> int:
        return self._shape.weights

    def advance(self) -> "_Model | None":
        piece = -(-self._shape.weights // self._shape.pieces)
        piece = min(piece, self._shape.weights - self.loaded_bytes)
        self._backend.mac.allocate(piece)
        self._backend.take(self._shape.piece_seconds)
        self.loaded_bytes += piece
        return _Model(self._backend, self._shape) if self.loaded_bytes >= self.total_bytes else None

    def abandon(self) -> None:
        self._backend.mac.free(self.loaded_bytes)
        self.loaded_bytes = 0


class _Model:
    engine_kind = EngineKind.GENERATE
    vocab_size = 1000
    cache_kinds = ("KVCache",)

    def __init__(self, backend: SimulatedBackend, shape: ModelShape) -> None:
        self.backend = backend
        self.shape = shape
        self.weights_bytes = shape.weights

    def new_batch(self, *, max_sequences: int, max_prefills: int) -> "_Batch":
        return _Batch(self)

    def close(self) -> None:
        self.backend.mac.free(self.weights_bytes)


class _Batch:
    def __init__(self, model: _Model) -> None:
        self._mac = model.backend.mac
        self._backend = model.backend
        self._shape = model.shape
        self._sequences: dict[str, SequenceSpec] = {}
        self._done: dict[str, int] = {}
        self._said: dict[str, int] = {}
        self.cache_bytes = 0

    def execute(self, plan: StepPlan) -> StepResult:
        for i in plan.leave:
            self._forget(i)
        for entering in plan.enter:
            self._sequences[entering.spec.id] = entering.spec
            self._done[entering.spec.id] = 0
        prefilled: tuple[Prefilled, ...] = ()
        tokens: tuple[tuple[str, NewToken], ...] = ()
        if plan.decode or plan.prefill:
            self._backend.steps += 1
            prefilled, tokens = self._prefill(plan), self._decode()
        self._fit_cache()
        return StepResult(prefilled, tokens, left=plan.leave, cache_bytes=self.cache_bytes)

    def _decode(self) -> tuple[tuple[str, NewToken], ...]:
        tokens = []
        for i in list(self._said):
            self._said[i] += 1
            last = self._said[i] >= self._sequences[i].max_tokens
            tokens.append((i, NewToken(7, finish=FinishReason.LENGTH if last else None)))
            if last:
                self._forget(i)
        if tokens:
            self._backend.take(self._shape.decode_seconds)
        return tuple(tokens)

    def _prefill(self, plan: StepPlan) -> tuple[Prefilled, ...]:
        progress = []
        for i, tokens in plan.prefill:
            total = len(self._sequences[i].prompt)
            self._done[i] += tokens
            self._backend.take(self._shape.prefill_seconds * tokens)
            # The transient memory of the attention ends up in the pool.
            transient = self._shape.transient_token * tokens
            self._mac.allocate(transient)
            self._mac.free(transient)
            progress.append(Prefilled(i, self._done[i], total))
            if self._done[i] == total:
                self._said[i] = 0
        return tuple(progress)

    def _forget(self, request_id: str) -> None:
        for table in (self._sequences, self._done, self._said):
            table.pop(request_id, None)

    def _fit_cache(self) -> None:
        wanted = self._shape.kv_token * (sum(self._done.values()) + sum(self._said.values()))
        if wanted > self.cache_bytes:
            self._mac.allocate(wanted - self.cache_bytes)
        else:
            self._mac.free(self.cache_bytes - wanted)
        self.cache_bytes = wanted

    def close(self) -> None:
        for i in list(self._sequences):
            self._forget(i)
        self._fit_cache()
