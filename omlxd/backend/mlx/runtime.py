"""The process-wide side of MLX: set-up, memory, the end. Imported on the device thread."""

import gc
import importlib
import importlib.metadata
import os
from typing import Any

import mlx.core as mx
import structlog
from mlx_lm.generate import BatchGenerator, generation_stream

from omlxd.backend.protocol import BackendInfo
from omlxd.policy.readings import AllocatorSample
from omlxd.units import GiB

log = structlog.get_logger(__name__)

_NAMED = ("mlx", "mlx-lm", "transformers")
_POOL_SHARE = 0.05
_POOL_MOST = 2 * GiB


class Runtime:
    """MLX as the calling thread found it."""

    def __init__(self, pool_limit: int | None, wired_limit: int | None = None) -> None:
        try:
            never_wire()
            check_internals()
            self.info = describe_device()
            _limit_pool(pool_limit, self.info)
            # The generator is this thread's own and starts alike in every process.
            mx.random.seed(int.from_bytes(os.urandom(8)))
            self._unwired = None if wired_limit is None else _wire(wired_limit)
            """The wired limit as it was; None where it was left alone."""
        except BaseException:
            mx.clear_streams()
            raise

    def sample(self, now: float) -> AllocatorSample:
        return AllocatorSample(
            taken_at=now,
            active=mx.get_active_memory(),
            buffer_cache=mx.get_cache_memory(),
            peak=mx.get_peak_memory(),
            device_free=_device_free() if self.info.own_memory else None,
        )

    def reclaim(self) -> int:
        """What is dropped is freed only once the work that used it is through."""
        gc.collect()
        mx.synchronize(generation_stream)
        mx.synchronize()
        pooled = int(mx.get_cache_memory())
        mx.clear_cache()
        return max(pooled - int(mx.get_cache_memory()), 0)

    def stop(self) -> None:
        """MLX must not be used on this thread afterwards."""
        try:
            self.reclaim()
        finally:
            if self._unwired is not None:
                mx.set_wired_limit(self._unwired)
            # A thread that ends with streams of its own can take the process with it.
            mx.clear_streams()


def never_wire() -> None:
    """Keep mlx-lm from wiring memory: each BatchGenerator would raise the wired limit to the
    most there is, and the first to close would undo it for the others. Wiring under churn of
    buffers can bring the whole machine down."""
    for module in ("mlx_lm.generate", "mlx_lm.utils"):
        loaded = importlib.import_module(module)
        if not hasattr(loaded, "maybe_set_recommended_wired_limit"):
            raise _unsupported(f"{module}.maybe_set_recommended_wired_limit is gone")
        loaded.maybe_set_recommended_wired_limit = _no_wired_limit  # type: ignore[attr-defined]


def _wire(limit: int) -> int | None:
    """Raise the wired limit; what it was before, None when the system refuses so much."""
    try:
        before = int(mx.set_wired_limit(limit))
    except (ValueError, RuntimeError) as error:
        log.error("wired_limit_refused", limit=limit, reason=str(error))
        return None
    log.info("wired_limit_set", limit=limit, before=before)
    return before


def _no_wired_limit() -> None:
    """mlx-lm takes None for a device without a recommended limit and then leaves it alone."""


def check_internals() -> None:
    """Fail at the start, not in a request, when mlx-lm no longer has what we build on."""
    generator = BatchGenerator(None)
    try:
        for owner, names in (
            (
                generator,
                "insert_segments next remove extract_cache prefill_step_size prompt_cache_nbytes "
                "stream _generation_batch",
            ),
            # For ``batch.sampled_ahead``.
            (getattr(generator, "_generation_batch", None), "uids _next_tokens _next_logprobs"),
        ):
            missing = [name for name in names.split() if not hasattr(owner, name)]
            if missing:
                raise _unsupported(f"{type(owner).__name__} has no {', '.join(missing)}")
        if vars(generator).get("_old_wired_limit", 0) is not None:
            raise _unsupported("BatchGenerator sets the wired limit another way")
    finally:
        generator.close()


def _unsupported(why: str) -> RuntimeError:
    version = importlib.metadata.version("mlx-lm")
    return RuntimeError(f"mlx-lm {version} is not supported: {why}")


def describe_device() -> BackendInfo:
    # metal.is_available() says only what the build can do.
    kind = "gpu" if mx.device_count(mx.gpu) > 0 else "cpu"
    facts = _device_facts(kind)
    return BackendInfo(
        name="mlx",
        versions=tuple((name, importlib.metadata.version(name)) for name in _NAMED),
        device_name=f"{facts.get('device_name', 'unknown')} ({kind})",
        recommended_working_set=facts.get("max_recommended_working_set_size"),
        max_buffer_bytes=facts.get("max_buffer_length"),
        memory_total=facts.get("memory_size", facts.get("total_memory")),
        own_memory=kind == "gpu" and "total_memory" in facts,
    )


def _device_facts(kind: str) -> dict[str, Any]:
    return dict(mx.device_info(mx.Device(getattr(mx, kind), 0)))


def _device_free() -> int | None:
    """The CUDA build asks the driver anew at each call; other apps on the device count."""
    free = _device_facts("gpu").get("free_memory")
    return free if isinstance(free, int) else None


def _limit_pool(limit: int | None, info: BackendInfo) -> None:
    """Left alone the pool of a GPU grows to nearly all memory; that of the CPU has a small cap."""
    if limit is None:
        if info.memory_total is None:
            return
        limit = min(int(info.memory_total * _POOL_SHARE), _POOL_MOST)
    mx.set_cache_limit(limit)
