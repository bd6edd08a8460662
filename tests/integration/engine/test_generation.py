"""What the engine says, on real MLX, against what mlx-lm says by itself."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omlxd.backend.mlx.backend import import_mlx_lm
from omlxd.backend.sequence import FinishReason, NewToken, Sampling, SequenceSpec
from omlxd.engine.handle import Engine, Generation, RequestPhase, TokensArrived
from omlxd.errors import GenerationFailed, InvalidRequest
from tests.support.tiny_models import ARCHITECTURES, VOCABULARY

Tiny = Callable[..., Path]
GREEDY = Sampling(temperature=0.0)
LENGTHS = (1, 2, 7, 20, 33, 48, 64, 100)
"""Some shorter, some longer than the sliding window of 32 and than one chunk of a batch of 8."""


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((n * 37 + length * 11 + seed * 101) % 900 + 3 for n in range(length))


def reference(folder: Path, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """mlx-lm's own greedy answers, each alone, on a thread of their own."""
    answers: list[list[int]] = []

    def run() -> None:
        import_mlx_lm()
        import mlx.core as mx
        from mlx_lm.generate import generate_step
        from mlx_lm.utils import load_model

        model, _ = load_model(folder)
        for one in prompts:
            steps = generate_step(mx.array(list(one)), model, max_tokens=tokens)
            answers.append([int(token) for token, _ in steps])
        del model
        mx.clear_streams()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answers


async def tokens_of(generation: Generation) -> list[NewToken]:
    tokens: list[NewToken] = []
    async for event in generation:
        if isinstance(event, TokensArrived):
            tokens += event.tokens
    return tokens


async def ask(
    engine: Engine,
    request_id: str,
    ids: Sequence[int],
    sampling: Sampling = GREEDY,
    *,
    tokens: int = 12,
    **fields: Any,
) -> list[int]:
    spec = SequenceSpec(request_id, tuple(ids), tokens, sampling, **fields)
    return [t.token for t in await tokens_of(engine.submit("m", spec))]


@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_greedy_answers_equal_mlx_lm_alone_and_in_a_batch(
    engine: Engine, tiny: Tiny, arch: str
) -> None:
    """A sliding window, recurrent states, latent attention and experts among them."""
    prompts = [prompt(n) for n in LENGTHS]
    expected = reference(tiny(arch), prompts, 12)
    await engine.load("m", str(tiny(arch))).result()
    alone = await ask(engine, "alone", prompts[-1])
    assert alone == expected[-1]
    batch = await asyncio.gather(*(ask(engine, f"r{n}", one) for n, one in enumerate(prompts)))
    assert batch == expected


async def test_quantised_weights_answer_like_mlx_lm(engine: Engine, tiny: Tiny) -> None:
    folder = tiny("llama", bits=4)
    expected = reference(folder, [prompt(40)], 12)
    await engine.load("m", str(folder)).result()
    assert await ask(engine, "r", prompt(40)) == expected[0]


async def test_a_seed_gives_the_same_answer_whatever_runs_beside_it(
    engine: Engine, tiny: Tiny
) -> None:
    await engine.load("m", str(tiny("llama"))).result()
    seeded = Sampling(temperature=1.0, seed=1234, top_p=0.95)
    alone = await ask(engine, "alone", prompt(20), seeded, tokens=24)
    others = [
        ask(engine, "greedy", prompt(50)),
        ask(engine, "random", prompt(9), Sampling(temperature=1.5), tokens=30),
        ask(engine, "same seed", prompt(31), seeded),
        ask(engine, "penalised", prompt(5), Sampling(temperature=1.0, frequency_penalty=1.0)),
    ]
    beside, *_ = await asyncio.gather(ask(engine, "beside", prompt(20), seeded, tokens=24), *others)
    assert beside == alone
    other = await ask(
        engine, "other", prompt(20), Sampling(temperature=1.0, seed=1235, top_p=0.95), tokens=24
    )
    assert other != alone


async def test_without_a_seed_answers_differ(engine: Engine, tiny: Tiny) -> None:
    await engine.load("m", str(tiny("llama"))).result()
    hot = Sampling(temperature=2.0)
    answers = await asyncio.gather(
        *(ask(engine, f"r{n}", prompt(20), hot, tokens=16) for n in range(4))
    )
    assert len({tuple(a) for a in answers}) == 4


async def test_a_plain_request_beside_penalties_and_bias_says_what_it_says_alone(
    engine: Engine, tiny: Tiny
) -> None:
    """T43"""
    await engine.load("m", str(tiny("qwen3"))).result()
    alone = await ask(engine, "alone", prompt(30), tokens=20)
    plain, penalised, biased = await asyncio.gather(
        ask(engine, "plain", prompt(30), tokens=20),
        ask(
            engine,
            "penalised",
            prompt(30),
            Sampling(temperature=0.0, repetition_penalty=1.8, frequency_penalty=2.0),
            tokens=20,
        ),
        ask(
            engine,
            "biased",
            prompt(30),
            Sampling(temperature=0.0, logit_bias=((77, 1000.0),)),
            tokens=20,
        ),
    )
    assert plain == alone
    assert biased == [77] * 20
    assert len(penalised) == 20


async def test_presence_and_frequency_look_at_the_answer_only(engine: Engine, tiny: Tiny) -> None:
    """The one wanted token is in the prompt: that costs it nothing until it has been said."""
    await engine.load("m", str(tiny("llama"))).result()
    bias = ((55, 1000.0), (66, 900.0))
    for penalty in ({"presence_penalty": 200.0}, {"frequency_penalty": 200.0}):
        sampling = replace(Sampling(temperature=0.0, logit_bias=bias), **penalty)  # type: ignore[arg-type]
        said = await ask(engine, str(penalty), (55, 55, 55, 9), sampling, tokens=2)
        assert said == [55, 66]
    doubled = Sampling(temperature=0.0, logit_bias=bias, repetition_penalty=2.0)
    assert await ask(engine, "repetition", (55, 9), doubled, tokens=2) == [66, 55]


async def test_a_top_k_wider_than_the_vocabulary_is_no_top_k(engine: Engine, tiny: Tiny) -> None:
    await engine.load("m", str(tiny("llama"))).result()
    answers = [
        await ask(engine, str(k), prompt(20), Sampling(temperature=1.0, top_k=k, seed=5))
        for k in (None, VOCABULARY, 10 * VOCABULARY)
    ]
    assert answers[0] == answers[1] == answers[2]
    assert await ask(engine, "one", prompt(20), Sampling(temperature=5.0, top_k=1)) == (
        await ask(engine, "greedy", prompt(20))
    )


async def test_log_probabilities_belong_to_the_rows_that_asked(engine: Engine, tiny: Tiny) -> None:
    await engine.load("m", str(tiny("llama"))).result()
    specs = [
        SequenceSpec("none", prompt(20), 4, GREEDY),
        SequenceSpec("chosen", prompt(20), 4, GREEDY, top_logprobs=0),
        SequenceSpec("top", prompt(20), 4, GREEDY, top_logprobs=5),
        SequenceSpec("all", prompt(20), 4, GREEDY, top_logprobs=VOCABULARY),
    ]
    none, chosen, top, everything = await asyncio.gather(
        *(tokens_of(engine.submit("m", spec)) for spec in specs)
    )
    assert [(t.logprob, t.top) for t in none] == [(None, ())] * 4
    for plain, best, full in zip(chosen, top, everything, strict=True):
        assert plain.top == ()
        assert len(best.top) == 5
        assert best.top[0] == (best.token, pytest.approx(best.logprob, abs=1e-4))
        values = [value for _, value in best.top]
        assert values == sorted(values, reverse=True)
        assert plain.logprob == pytest.approx(best.logprob, abs=1e-4)
        assert sum(2.718281828**value for _, value in full.top) == pytest.approx(1.0, abs=1e-3)


async def test_a_stop_token_ends_the_answer_and_is_reported(engine: Engine, tiny: Tiny) -> None:
    """T35"""
    await engine.load("m", str(tiny("llama"))).result()
    free = await ask(engine, "free", prompt(20), tokens=10)
    stop = free[4]
    spec = SequenceSpec("stopped", prompt(20), 10, GREEDY, frozenset({stop, 1}))
    tokens = await tokens_of(engine.submit("m", spec))
    first = free.index(stop)
    assert [t.token for t in tokens] == free[: first + 1]
    assert [t.finish for t in tokens] == [None] * first + [FinishReason.STOP]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (5, VOCABULARY)}, "prompt"),
        ({"prompt": (-1,)}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"sampling": Sampling(logit_bias=((VOCABULARY, 1.0),))}, "logit_bias"),
        ({"sampling": Sampling(logit_bias=((-1, 1.0),))}, "logit_bias"),
        ({"sampling": Sampling(top_k=0)}, "top_k"),
        ({"sampling": Sampling(temperature=float("nan"))}, "temperature"),
        ({"sampling": Sampling(top_p=0.0)}, "top_p"),
        ({"sampling": Sampling(min_p=1.5)}, "min_p"),
        ({"sampling": Sampling(repetition_penalty=0.0)}, "repetition_penalty"),
    ],
)
async def test_what_the_model_cannot_follow_is_refused_by_name(
    engine: Engine, tiny: Tiny, fields: dict[str, Any], param: str
) -> None:
    await engine.load("m", str(tiny("llama"))).result()
    arguments: dict[str, Any] = {"id": "r", "prompt": (5,), "max_tokens": 3, **fields}
    with pytest.raises(InvalidRequest) as refused:
        await tokens_of(engine.submit("m", SequenceSpec(**arguments)))
    assert refused.value.param == param
    assert len(await ask(engine, "next", prompt(5), tokens=3)) == 3


@pytest.mark.parametrize("arch", ["llama", "gemma3_text", "falcon_h1", "qwen3_next"])
async def test_a_cancel_in_any_phase_leaves_the_others_exact(
    engine: Engine, tiny: Tiny, arch: str
) -> None:
    """T42"""
    expected = reference(tiny(arch), [prompt(60)], 40)[0]
    await engine.load("m", str(tiny(arch))).result()
    kept = asyncio.create_task(ask(engine, "kept", prompt(60), tokens=40))
    decoding = engine.submit("m", SequenceSpec("decoding", prompt(30), 4000, GREEDY))
    while decoding.phase is not RequestPhase.DECODE:
        await anext(decoding)
    prefilling = engine.submit("m", SequenceSpec("prefilling", prompt(3000), 10, GREEDY))
    while prefilling.phase is RequestPhase.QUEUED:
        await anext(prefilling)
    queued = engine.submit("m", SequenceSpec("queued", prompt(10), 10, GREEDY))
    for generation in (queued, prefilling, decoding):
        generation.cancel()
        await generation.closed()
    assert await kept == expected
    assert engine.requests.views() == ()
    assert engine.view("m").cache_bytes == 0


async def test_a_sampler_that_raises_fails_its_own_request(
    engine: Engine, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T43"""
    from omlxd.backend.mlx import sampling

    def broken(*_: object) -> None:
        raise TypeError("injected")

    monkeypatch.setattr(sampling, "keep_likely", broken)
    monkeypatch.setattr(sampling, "make_presence_penalty", lambda *_: broken)
    await engine.load("m", str(tiny("llama"))).result()
    expected = await ask(engine, "alone", prompt(25), tokens=20)
    kept = asyncio.create_task(ask(engine, "kept", prompt(25), tokens=20))
    for n, sampling_ in enumerate(
        (Sampling(min_p=0.1), Sampling(temperature=0.0, presence_penalty=1.0))
    ):
        with pytest.raises(GenerationFailed, match="injected"):
            await ask(engine, f"bad{n}", prompt(10), sampling_)
    assert await kept == expected


async def test_a_step_that_raises_fails_its_requests_and_the_next_one_is_exact(
    engine: Engine, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T15"""
    from mlx_lm.generate import BatchGenerator

    await engine.load("m", str(tiny("falcon_h1"))).result()
    expected = await ask(engine, "before", prompt(25))
    calls = iter([False, False, False, True])
    original = BatchGenerator.next

    def failing(self: Any) -> Any:
        answer = original(self)
        if next(calls, False):
            raise RuntimeError("[METAL] Command buffer execution failed: injected")
        return answer

    monkeypatch.setattr(BatchGenerator, "next", failing)
    results = await asyncio.gather(
        *(ask(engine, f"r{n}", prompt(25), tokens=40) for n in range(3)), return_exceptions=True
    )
    assert [type(r) for r in results] == [GenerationFailed] * 3
    assert await ask(engine, "after", prompt(25)) == expected
