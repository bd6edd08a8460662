"""Tokenizers: one load for all requests, failures that are raised again, volumes that hang."""

import asyncio
import gc
import threading

import pytest

from omlxd.errors import ModelBroken, ModelLoadFailed
from omlxd.pool.tokenizers import RETRY_AFTER, TokenizerCache
from tests.unit.pool.fakes import FakeTime, a_model, settle


async def test_a_failed_tokenizer_load_is_told_to_all_and_tried_again() -> None:
    loads: list[str] = []

    def load(path: str) -> object:
        loads.append(path)
        if len(loads) == 1:
            raise ValueError("no tokenizer")
        return object()

    cache = TokenizerCache(load, 60.0)  # type: ignore[arg-type]
    results = await asyncio.gather(
        cache.get(a_model("m")), cache.get(a_model("m")), return_exceptions=True
    )
    assert all(isinstance(result, ValueError) for result in results)
    assert await cache.get(a_model("m")) is not None
    assert len(loads) == 2


async def test_a_tokenizer_that_cannot_be_read_is_left_alone_for_a_moment() -> None:
    """T61: otherwise each request would parse the damaged file again."""
    time = FakeTime()
    loads: list[str] = []

    def load(path: str) -> object:
        loads.append(path)
        raise ModelBroken(f"{path}/tokenizer.json is damaged", file=f"{path}/tokenizer.json")

    async def failure() -> ModelBroken:
        with pytest.raises(ModelBroken) as caught:
            await cache.get(a_model("m"))
        return caught.value

    cache = TokenizerCache(load, 60.0, clock=time.clock)  # type: ignore[arg-type]
    first, beside = await asyncio.gather(failure(), failure())
    time.now += RETRY_AFTER - 0.1
    again = await failure()
    assert len(loads) == 1
    assert len({id(error) for error in (first, beside, again)}) == 3
    for error in (first, beside, again):
        assert error.message == "Model 'm' cannot be loaded: tokenizer.json is damaged"
        assert error.details == {"file": "tokenizer.json"}
    time.now += 0.2
    assert cache.failure(a_model("m")) is not None
    await failure()
    assert len(loads) == 2


async def test_what_was_wrong_with_a_tokenizer_is_known_until_one_is_read() -> None:
    """T61"""
    time = FakeTime()
    whole = threading.Event()

    def load(path: str) -> object:
        if not whole.is_set():
            raise ModelBroken(f"{path}/tokenizer.json is damaged", file=f"{path}/tokenizer.json")
        return object()

    cache = TokenizerCache(load, 60.0, clock=time.clock)  # type: ignore[arg-type]
    m, other = a_model("m"), a_model("other", fingerprint="2")
    for model in (m, other):
        with pytest.raises(ModelBroken):
            await cache.get(model)
    time.now += 2 * RETRY_AFTER
    kept = cache.failure(m)
    assert kept is not None
    assert (kept[0].details, kept[1]) == ({"file": "tokenizer.json"}, 0.0)
    cache.forget_failures(but=[m.fingerprint])
    assert cache.failure(other) is None
    whole.set()
    await cache.get(m)
    assert cache.failure(m) is None


async def test_a_caller_that_leaves_does_not_end_the_tokenizer_load_of_others() -> None:
    cache = TokenizerCache(lambda path: object(), 60.0)  # type: ignore[arg-type, return-value]
    first = asyncio.create_task(cache.get(a_model("m")))
    second = asyncio.create_task(cache.get(a_model("m")))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is not None


async def test_tokenizers_nobody_needs_are_forgotten() -> None:
    cache = TokenizerCache(lambda path: object(), 60.0)  # type: ignore[arg-type, return-value]
    kept, dropped = a_model("kept"), a_model("dropped")
    before = await cache.get(kept), await cache.get(dropped)
    cache.retain([kept.fingerprint])
    assert await cache.get(kept) is before[0]
    assert await cache.get(dropped) is not before[1]


async def test_a_failure_nobody_waits_for_is_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    threads: list[threading.Thread] = []

    def fail(path: str) -> object:
        threads.append(threading.current_thread())
        raise ValueError("no")

    cache = TokenizerCache(fail, 60.0)  # type: ignore[arg-type]
    task = asyncio.create_task(cache.get(a_model("m")))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    threads[0].join()
    await settle()
    gc.collect()
    assert not recwarn.list


async def test_a_tokenizer_on_a_volume_that_hangs_is_an_error_and_stops_no_other() -> None:
    let_go = threading.Event()
    threads: list[threading.Thread] = []

    def load(path: str) -> object:
        threads.append(threading.current_thread())
        if path == hung.path:
            let_go.wait()
        return object()

    hung, good = a_model("hung"), a_model("good")
    assert hung.path != good.path
    cache = TokenizerCache(load, 0.02)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(ModelLoadFailed, match=r"'hung'.*models\.tokenizer_limit"):
            await cache.get(hung)
    assert len(threads) == 1, "no second thread beside one that hangs"
    assert threads[0].daemon
    patient = TokenizerCache(load, 60.0)  # type: ignore[arg-type]
    assert await patient.get(good) is not None
    let_go.set()
    threads[0].join()
    await settle()
    assert await cache.get(hung) is not None
    assert len(threads) == 2
