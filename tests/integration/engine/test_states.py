"""The state of a sequence, taken out of a batch of real MLX and put into one again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omlxd.backend.mlx import runtime
from omlxd.backend.mlx.batch import MlxBatch
from omlxd.backend.mlx.load import MlxLoad, MlxModel
from omlxd.backend.model_files import check_model_files
from omlxd.backend.plan import EnteringSequence, SavedSequence, StepPlan, StepResult
from omlxd.backend.sequence import FinishReason, NewToken, Sampling, SequenceSpec
from omlxd.errors import GenerationFailed
from tests.support.tiny_models import ARCHITECTURES

Tiny = Callable[..., Path]
GREEDY = Sampling(temperature=0.0)
CHUNK = 16


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((n * 37 + length * 11 + seed * 101) % 900 + 3 for n in range(length))


def load(folder: Path) -> MlxModel:
    loading = MlxLoad(check_model_files(folder), 1024**2)
    while (model := loading.advance()) is None:
        pass
    return model


class Driver:
    """Plans the steps of one batch, and collects what every sequence says."""

    def __init__(self, model: MlxModel) -> None:
        self.batch: MlxBatch = model.new_batch(max_sequences=4, max_prefills=4)
        self.left: dict[str, int] = {}
        """Prompt tokens that are not in the cache yet."""
        self.decoding: set[str] = set()
        self.said: dict[str, list[NewToken]] = {}
        self.cached: dict[str, int] = {}
        self.saved: dict[str, SavedSequence] = {}

    def enter(self, spec: SequenceSpec, saved: SavedSequence | None = None) -> StepResult:
        if saved is None:
            return self._enter(EnteringSequence(spec))
        return self._enter(EnteringSequence(spec, saved.answer, saved.state))

    def _enter(self, entering: EnteringSequence) -> StepResult:
        self.left[entering.spec.id] = entering.prefill_tokens - entering.cached_tokens
        self.said.setdefault(entering.spec.id, [])
        return self.execute(StepPlan(enter=(entering,)))

    def steps(self, count: int) -> None:
        for _ in range(count):
            prefill = tuple((i, min(CHUNK, left)) for i, left in self.left.items())
            self.execute(StepPlan(decode=tuple(self.decoding), prefill=prefill))

    def take_out(self, request_id: str, key: str = "kept") -> SavedSequence:
        self.execute(StepPlan(save=((request_id, key),), leave=(request_id,)))
        self.left.pop(request_id, None)
        self.decoding.discard(request_id)
        return self.saved.pop(request_id)

    def run_out(self) -> None:
        while self.left or self.decoding:
            self.steps(1)

    def execute(self, plan: StepPlan) -> StepResult:
        result = self.batch.execute(plan)
        for progress in result.prefilled:
            self.left[progress.request_id] = progress.total - progress.done
            self.cached[progress.request_id] = progress.cached
            if progress.done == progress.total:
                del self.left[progress.request_id]
                self.decoding.add(progress.request_id)
        for request_id, token in result.tokens:
            self.said[request_id].append(token)
            if token.finish is not None:
                self.decoding.discard(request_id)
        self.saved.update((s.id, s) for s in result.saved)
        return result

    def tokens(self, request_id: str) -> list[int]:
        return [token.token for token in self.said[request_id]]


def undisturbed(model: MlxModel, spec: SequenceSpec) -> list[int]:
    driver = Driver(model)
    driver.enter(spec)
    driver.run_out()
    return driver.tokens(spec.id)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_sequence_that_was_suspended_goes_on_exactly_and_so_does_its_neighbour(
    tiny: Tiny, arch: str
) -> None:
    """Its prompt takes 5 chunks of 16 and its last token: before that it is still in prefill."""
    model = load(tiny(arch))
    spec = SequenceSpec("s", prompt(70), 20, GREEDY)
    neighbour = SequenceSpec("n", prompt(41), 40, GREEDY)
    expected = {s.id: undisturbed(model, s) for s in (spec, neighbour)}
    for steps, tokens_in_cache in ((3, 48), (6, 70), (15, 79)):
        driver = Driver(model)
        driver.enter(neighbour)
        driver.steps(2)
        driver.enter(spec)
        driver.steps(steps)
        saved = driver.take_out("s")
        assert saved.answer == tuple(driver.tokens("s"))
        assert saved.state is not None
        assert saved.state.tokens == tokens_in_cache
        assert saved.state.bytes > 0
        driver.steps(3)
        driver.enter(spec, saved)
        driver.run_out()
        assert {i: driver.tokens(i) for i in driver.said} == expected
        assert driver.said["s"][-1].finish is FinishReason.LENGTH
        assert driver.cached["s"] == tokens_in_cache


@pytest.mark.parametrize("arch", ["llama", "gemma3_text", "falcon_h1", "qwen3_next"])
def test_a_state_that_is_gone_is_computed_again(tiny: Tiny, arch: str) -> None:
    model = load(tiny(arch))
    spec = SequenceSpec("s", prompt(50), 20, GREEDY)
    expected = undisturbed(model, spec)
    driver = Driver(model)
    driver.enter(spec)
    driver.steps(10)
    saved = driver.take_out("s")
    assert 0 < len(saved.answer) < 20
    driver.enter(spec, SavedSequence("s", saved.answer, None))
    driver.run_out()
    assert driver.tokens("s") == expected


@pytest.mark.parametrize("arch", ["llama", "gemma3_text", "gpt_oss", "mamba2", "falcon_h1"])
def test_the_state_of_a_prompt_starts_other_sequences_exactly(tiny: Tiny, arch: str) -> None:
    """The state is taken while its sequence runs on, and serves twice, in another batch too."""
    model = load(tiny(arch))
    first = SequenceSpec("first", prompt(48), 12, GREEDY)
    longer = SequenceSpec("longer", (*prompt(48), *prompt(30, seed=5)), 12, GREEDY)
    other = SequenceSpec("other", (*prompt(48), *prompt(7, seed=9)), 12, GREEDY)
    expected = {s.id: undisturbed(model, s) for s in (first, longer, other)}
    driver = Driver(model)
    driver.enter(first)
    while not driver.decoding:
        driver.steps(1)
    driver.execute(StepPlan(save=(("first", "prompt"),)))
    kept = driver.saved.pop("first")
    assert (kept.answer, kept.state and kept.state.tokens) == ((), 48)
    driver.enter(longer, kept)
    driver.run_out()
    again = Driver(model)
    again.enter(other, kept)
    again.run_out()
    assert {**driver.said, **again.said}.keys() == expected.keys()
    assert {i: d.tokens(i) for d in (driver, again) for i in d.said} == expected
    assert (driver.cached["longer"], again.cached["other"]) == (48, 48)


def test_seeds_penalties_and_log_probabilities_survive_a_suspension(tiny: Tiny) -> None:
    model = load(tiny("llama"))
    sampling = Sampling(temperature=1.0, seed=7, top_p=0.95, frequency_penalty=0.5)
    spec = SequenceSpec("s", prompt(30), 24, sampling, top_logprobs=2)
    driver = Driver(model)
    driver.enter(spec)
    driver.run_out()
    expected = driver.said.pop("s")
    driver.enter(spec)
    driver.steps(9)
    saved = driver.take_out("s")
    driver.enter(spec, saved)
    driver.run_out()
    assert driver.tokens("s") == [t.token for t in expected]
    for token, undisturbed_token in zip(driver.said["s"], expected, strict=True):
        assert token.logprob == pytest.approx(undisturbed_token.logprob, abs=1e-4)
        assert [t for t, _ in token.top] == [t for t, _ in undisturbed_token.top]


@pytest.mark.parametrize(("tokens", "stop"), [(4, False), (20, True)])
def test_a_sequence_whose_last_token_comes_as_it_is_taken_out_is_over(
    tiny: Tiny, tokens: int, stop: bool
) -> None:
    model = load(tiny("llama"))
    expected = undisturbed(model, SequenceSpec("s", prompt(20), 4, GREEDY))
    assert expected[3] not in expected[:3]
    stops = frozenset({expected[3]}) if stop else frozenset()
    driver = Driver(model)
    driver.enter(SequenceSpec("s", prompt(20), tokens, GREEDY, stops))
    while len(driver.said["s"]) < 3:
        driver.steps(1)
    saved = driver.take_out("s")
    assert driver.tokens("s") == expected
    assert driver.said["s"][-1].finish is (FinishReason.STOP if stop else FinishReason.LENGTH)
    assert (saved.answer, saved.state) == (tuple(expected), None)


def test_a_sequence_that_has_not_begun_has_no_state(tiny: Tiny) -> None:
    driver = Driver(load(tiny("llama")))
    driver.enter(SequenceSpec("s", prompt(20), 4, GREEDY))
    saved = driver.take_out("s")
    assert saved == SavedSequence("s", (), None)


def test_a_state_that_is_forgotten_or_of_other_tokens_starts_nothing(tiny: Tiny) -> None:
    driver = Driver(load(tiny("llama")))
    driver.enter(SequenceSpec("s", prompt(20), 9, GREEDY))
    driver.steps(4)
    saved = driver.take_out("s")
    failures: list[Any] = [driver.enter(SequenceSpec("o", prompt(40), 9, GREEDY), saved).failed]
    driver.execute(StepPlan(forget=("kept",)))
    failures.append(driver.enter(SequenceSpec("s", prompt(20), 9, GREEDY), saved).failed)
    assert [[(i, type(e)) for i, e in f] for f in failures] == [
        [("o", GenerationFailed)],
        [("s", GenerationFailed)],
    ]


class OtherGenerator:
    """Of an mlx-lm whose generation batch is another one."""

    _generation_batch = object()
    stream = insert_segments = next = remove = extract_cache = None
    prefill_step_size = prompt_cache_nbytes = 0

    def __init__(self, model: object) -> None: ...

    def close(self) -> None: ...


def test_an_mlx_lm_without_what_a_suspension_reads_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime.check_internals()
    monkeypatch.setattr(runtime, "BatchGenerator", OtherGenerator)
    with pytest.raises(RuntimeError, match="object has no uids, _next_tokens, _next_logprobs"):
        runtime.check_internals()
