"""MLX's set-up, memory and end, once in a process. Imported on the device thread."""

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

_PACKAGES = ("mlx", "mlx-lm", "transformers")
_BUFFER_CACHE_SHARE = 0.05
_LARGEST_BUFFER_CACHE = 2 * GiB


class Runtime:
    """MLX on the calling thread."""

    def __init__(self, pool_limit: int | None, wired_limit: int | None = None) -> None:
        try:
            never_wire()
            check_internals()
            self.info = describe_device()
            _limit_buffer_cache(pool_limit, self.info)
            # Each thread has its own random generator, with the same start in every process.
            mx.random.seed(int.from_bytes(os.urandom(8)))
            self._old_wired_limit = None if wired_limit is None else _wire(wired_limit)
            """The wired limit before; None when it was not changed."""
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
        """Waits for the running work, because its memory is free only when it is done."""
        gc.collect()
        mx.synchronize(generation_stream)
        mx.synchronize()
        before = int(mx.get_cache_memory())
        mx.clear_cache()
        return max(before - int(mx.get_cache_memory()), 0)

    def stop(self) -> None:
        """MLX must not be used on this thread afterwards."""
        try:
            self.reclaim()
        finally:
            if self._old_wired_limit is not None:
                mx.set_wired_limit(self._old_wired_limit)
            # A thread that ends with streams of its own can abort the process.
            mx.clear_streams()


def never_wire() -> None:
    """Keep mlx-lm from wiring memory.

    Each BatchGenerator would raise the wired limit to the maximum, and the first one that closes
    would undo it for the others. Wiring many short-lived buffers can crash the whole machine.
    """
    for module in ("mlx_lm.generate", "mlx_lm.utils"):
        loaded = importlib.import_module(module)
        if not hasattr(loaded, "maybe_set_recommended_wired_limit"):
            raise _unsupported(f"{module}.maybe_set_recommended_wired_limit is gone")
        loaded.maybe_set_recommended_wired_limit = _no_wired_limit  # type: ignore[attr-defined]


def _wire(limit: int) -> int | None:
    """Set the wired limit. Returns the limit before, None when the system refuses this one."""
    try:
        before = int(mx.set_wired_limit(limit))
    except (ValueError, RuntimeError) as error:
        log.error("wired_limit_refused", limit=limit, reason=str(error))
        return None
    log.info("wired_limit_set", limit=limit, before=before)
    return before


def _no_wired_limit() -> None:
    """mlx-lm understands None as a device without a recommended limit, and then sets none."""


def check_internals() -> None:
    """Fail at the start, not in a request, if this mlx-lm lacks what the backend uses."""
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
    # metal.is_available() says only whether the build has Metal.
    kind = "gpu" if mx.device_count(mx.gpu) > 0 else "cpu"
    facts = _device_facts(kind)
    return BackendInfo(
        name="mlx",
        versions=tuple((name, importlib.metadata.version(name)) for name in _PACKAGES),
        device_name=f"{facts.get('device_name', 'unknown')} ({kind})",
        recommended_working_set=facts.get("max_recommended_working_set_size"),
        max_buffer_bytes=facts.get("max_buffer_length"),
        memory_total=facts.get("memory_size", facts.get("total_memory")),
        own_memory=kind == "gpu" and "total_memory" in facts,
    )


def _device_facts(kind: str) -> dict[str, Any]:
    return dict(mx.device_info(mx.Device(getattr(mx, kind), 0)))


def _device_free() -> int | None:
    """The CUDA build asks the driver at each call; it counts the other apps on the device too."""
    free = _device_facts("gpu").get("free_memory")
    return free if isinstance(free, int) else None


def _limit_buffer_cache(limit: int | None, info: BackendInfo) -> None:
    """Without a limit the buffer cache of a GPU grows to nearly all memory."""
    if limit is None:
        if info.memory_total is None:
            return
        limit = min(int(info.memory_total * _BUFFER_CACHE_SHARE), _LARGEST_BUFFER_CACHE)
    mx.set_cache_limit(limit)
