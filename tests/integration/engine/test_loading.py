"""Models into memory and out of it, on real MLX."""

import asyncio
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlxd.backend.mlx.load import MlxLoad
from omlxd.backend.model_files import check_model_files
from omlxd.backend.sequence import Sampling, SequenceSpec
from omlxd.engine.handle import Engine, TokensArrived
from omlxd.errors import ModelBroken, ModelLoadCancelled, ModelLoadFailed

Tiny = Callable[..., Path]
SLACK = 64 * 1024
"""Bytes of odds and ends that are not the model's: keys, constants."""


@pytest.fixture
def copy(tiny: Tiny, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(tiny("llama"), folder)
    return folder


def large(tiny: Tiny) -> Path:
    """About 11 MB: several pieces of the 1 MiB that the engine here loads at a time."""
    return tiny("llama", hidden_size=256, intermediate_size=512, num_hidden_layers=4)


async def test_a_load_goes_piece_by_piece_and_unload_gives_all_back(
    engine: Engine, tiny: Tiny
) -> None:
    """T11"""
    before = (await engine.sample()).active
    ticket = engine.load("m", str(large(tiny)))
    info = await ticket.result()
    assert ticket.loaded_bytes == ticket.total_bytes == info.weights_bytes
    assert info.weights_bytes > 8 * 1024**2
    assert info.vocab_size == 1024
    assert info.cache_kinds == ("KVCache",) * 4
    loaded = (await engine.sample()).active
    assert abs(loaded - before - info.weights_bytes) < SLACK
    spec = SequenceSpec("r", (1, 2, 3), 5, Sampling(temperature=0.0))
    events = [event async for event in engine.submit("m", spec)]
    assert any(isinstance(e, TokensArrived) for e in events)
    freed = await engine.unload("m")
    assert freed >= info.weights_bytes
    sample = await engine.sample()
    assert sample.active - before < SLACK
    assert sample.buffer_cache == 0


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("fails", [False, True])
def test_a_load_leaves_no_unfinished_work_with_the_random_numbers(copy: Path, fails: bool) -> None:
    """T11: what layers draw for weights that are then replaced would stay for ever."""
    change_config(copy, num_hidden_layers=3 if fails else 2)
    load = MlxLoad(check_model_files(copy), 1024**2)
    with pytest.raises(ModelLoadFailed) if fails else nullcontext():
        load.advance()
    graph = io.StringIO()
    state: Any = mx.random.state
    mx.export_to_dot(graph, *state)
    load.abandon()
    assert "->" not in graph.getvalue()


async def test_an_unload_under_load_gives_all_back(engine: Engine, tiny: Tiny) -> None:
    before = (await engine.sample()).active
    await engine.load("m", str(large(tiny))).result()
    generations = [
        engine.submit("m", SequenceSpec(f"r{n}", tuple(range(3, 50)), 10_000)) for n in range(4)
    ]
    await anext(generations[0])
    await engine.unload("m")
    assert engine.requests.views() == ()
    assert (await engine.sample()).active - before < SLACK


async def test_a_cancelled_load_gives_back_what_it_took(engine: Engine, tiny: Tiny) -> None:
    before = (await engine.sample()).active
    ticket = engine.load("m", str(large(tiny)))
    while not ticket.loaded_bytes:
        await asyncio.sleep(0)
    ticket.cancel()
    try:
        await ticket.result()
        raced = True
    except ModelLoadCancelled:
        raced = False
    if raced:
        await engine.unload("m")
    else:
        assert ticket.total_bytes is not None
        assert ticket.loaded_bytes < ticket.total_bytes
    assert (await engine.sample()).active - before < SLACK


def test_each_piece_reads_about_what_it_should(tiny: Tiny) -> None:
    load = MlxLoad(check_model_files(large(tiny)), 1024**2)
    seen = [0]
    while load.advance() is None:
        seen.append(load.loaded_bytes)
    steps = [b - a for a, b in pairwise(seen)]
    assert len(steps) > 5
    assert max(steps) < 3 * 1024**2


async def test_a_truncated_file_is_broken_and_named(engine: Engine, copy: Path) -> None:
    """T61"""
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelBroken, match=r"model\.safetensors is truncated"):
        await engine.load("m", str(copy)).result()


def test_a_file_that_becomes_shorter_during_its_load_is_named(copy: Path) -> None:
    """T61"""
    load = MlxLoad(check_model_files(copy), 1024)
    load.advance()
    (copy / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelBroken, match=r"model\.safetensors is truncated"):
        load.advance()


async def test_a_load_that_fails_halfway_leaves_no_weights(
    engine: Engine, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omlxd.backend.mlx import load

    def failing(model: object) -> None:
        raise RuntimeError("injected after the last piece")

    before = (await engine.sample()).active
    with monkeypatch.context() as patch:
        patch.setattr(load, "make_prompt_cache", failing)
        with pytest.raises(ModelLoadFailed, match="injected") as failed:
            await engine.load("m", str(large(tiny))).result()
    assert (await engine.sample()).active - before < SLACK
    del failed
    await engine.load("m", str(large(tiny))).result()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"model_type": "no_such"},
            "does not support the model type 'no_such'",
        ),
        ({"model_type": "cache"}, "cannot be built from its config"),
        ({"hidden_size": 128}, "cannot be built from its config"),
        ({"num_hidden_layers": 3}, "cannot be built from its config"),
        ({"model_file": "evil.py"}, "never run"),
    ],
)
async def test_a_config_that_does_not_fit_fails_with_its_reason(
    engine: Engine, copy: Path, change: dict[str, object], words: str
) -> None:
    evil = copy / "evil.py"
    evil.write_text(f"open({str(copy / 'ran')!r}, 'w')\n")
    change_config(copy, **change)
    with pytest.raises(ModelLoadFailed, match=words) as failed:
        await engine.load("m", str(copy)).result()
    assert failed.value.details == {"file": str(copy / "config.json")}
    assert not (copy / "ran").exists()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device"), r"cannot be loaded \(OSError: .*No space left"),
        (ImportError("no tiktoken here."), r"cannot be loaded \(ImportError: no tiktoken here\)"),
        (ValueError("odd sizes"), r"cannot be built from .* \(ValueError: odd sizes\)"),
    ],
)
def test_the_files_are_blamed_only_for_what_they_can_have_caused(
    copy: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("omlxd.backend.mlx.load.load_model", failing)
    with pytest.raises(ModelLoadFailed, match=words) as failed:
        MlxLoad(check_model_files(copy), 1024).advance()
    blamed = {"file": str(copy / "config.json")} if isinstance(error, ValueError) else {}
    assert failed.value.details == blamed


def test_a_module_that_mlx_lm_cannot_import_is_named(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        missing = ModuleNotFoundError("No module named 'tiktoken'", name="tiktoken")
        raise ValueError("Model type llama not supported.") from missing

    monkeypatch.setattr("omlxd.backend.mlx.load.load_model", failing)
    with pytest.raises(ModelLoadFailed, match="No module named 'tiktoken'") as failed:
        MlxLoad(check_model_files(copy), 1024).advance()
    assert failed.value.details == {}


async def test_a_folder_with_glob_characters_loads(
    engine: Engine, tiny: Tiny, tmp_path: Path
) -> None:
    odd = tmp_path / "model [v1]*?"
    shutil.copytree(tiny("llama"), odd)
    info = await engine.load("m", str(odd)).result()
    assert info.vocab_size == 1024


async def test_several_models_answer_side_by_side(engine: Engine, tiny: Tiny) -> None:
    for arch in ("llama", "mamba2", "qwen3_moe"):
        await engine.load(arch, str(tiny(arch))).result()

    async def count(arch: str) -> int:
        spec = SequenceSpec(arch, (5, 6, 7), 30, Sampling(temperature=0.0))
        events = [event async for event in engine.submit(arch, spec)]
        return sum(len(e.tokens) for e in events if isinstance(e, TokensArrived))

    assert await asyncio.gather(*map(count, ("llama", "mamba2", "qwen3_moe"))) == [30] * 3


async def test_the_pool_is_given_back_on_request(engine: Engine, tiny: Tiny) -> None:
    await engine.load("m", str(tiny("llama"))).result()
    spec = SequenceSpec("r", tuple(range(3, 200)), 20, Sampling(temperature=0.0))
    async for _ in engine.submit("m", spec):
        pass
    assert (await engine.sample()).buffer_cache > 0
    engine.reclaim(when_idle=True)
    await engine.sample()
    assert (await engine.sample()).buffer_cache == 0
    assert engine.reclaimed_bytes > 0


SCRIPT = """
import asyncio, resource, sys, time
from omlxd.backend.mlx.backend import MlxBackend
from omlxd.backend.protocol import BackendOptions
from omlxd.backend.sequence import SequenceSpec
from omlxd.engine.handle import Engine
from omlxd.engine.options import EngineOptions

assert not {"mlx", "mlx_lm", "transformers"} & set(sys.modules)
limits = (1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
setrlimit = resource.setrlimit

async def main():
    backend = MlxBackend(BackendOptions())
    engine = Engine(backend, EngineOptions(), time.monotonic, on_death=print)
    engine.start()
    await engine.load("m", sys.argv[1]).result()
    async for _ in engine.submit("m", SequenceSpec("r", (5, 6, 7), 3)):
        pass
    running = engine.submit("m", SequenceSpec("left running", (5, 6, 7), 100_000))
    await anext(running)
    assert await engine.stop(30)

asyncio.run(main())
assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
assert resource.setrlimit is setrlimit
"""


def test_a_process_leaves_cleanly_and_keeps_its_file_limits(tiny: Tiny) -> None:
    """mlx-lm lowers RLIMIT_NOFILE at import, and a thread that used MLX can abort at exit."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(tiny("llama"))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
