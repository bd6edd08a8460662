"""How many prompt tokens the next step may prefill, from the time that earlier steps took."""

from dataclasses import dataclass, replace

SMALLEST_CHUNK = 32
"""The least on a slow machine. A smaller chunk takes as long, because it reads all weights too."""
SMALLEST_ALONE = 128
"""The least when no request waits for its next token."""
FIRST_CHUNK = 128
"""The first chunk of a model whose pace is unknown."""
GROWTH = 4
"""A chunk is at most this many times the last one, because the pace of a small chunk says little
about that of a large one."""
STRETCH_ALONE = 1.5
"""A chunk may become this many times as large if it ends the prompts: a further pass would read all
weights again."""
_SMOOTHING = 0.5


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What one step of one model may take.

    Attributes:
        seconds: the step should not take longer.
        smallest: prompt tokens that it may always take.
        stretch: how many times larger it may become if that saves another step.
    """

    seconds: float
    smallest: int
    stretch: float = 1.0


def step_budget(
    *, decode_stall: float, longest_step: float, prefilling_models: int, decoding: bool
) -> StepBudget:
    """The budget for each model's step in one iteration of the device thread.

    A request that decodes waits for the steps of all models. So while any request decodes, the
    models that prefill share the ``decode_stall`` seconds. Otherwise a step may take
    ``longest_step``.
    """
    if decoding:
        return StepBudget(
            min(decode_stall, longest_step) / max(prefilling_models, 1), SMALLEST_CHUNK
        )
    return StepBudget(longest_step, SMALLEST_ALONE, STRETCH_ALONE)


@dataclass(frozen=True, slots=True)
class PrefillPace:
    """The speed of one model's steps so far. ``None`` is not known yet.

    Attributes:
        tokens_per_second: prefill of all sequences together.
        decode_seconds: one decode pass, of the running batch or of the last prompt token.
        last_chunk: tokens of the latest prefill, all sequences together.
    """

    tokens_per_second: float | None = None
    decode_seconds: float | None = None
    last_chunk: int | None = None


def observe(
    pace: PrefillPace, *, prefilled: int, decode_passes: int, seconds: float
) -> PrefillPace:
    """``pace`` after a step of ``seconds``.

    ``prefilled`` counts the prompt tokens without the last one of each prompt, which takes a
    decode pass. ``decode_passes`` counts these passes and that of the running batch. The time of a
    pass is measured in steps without prefill and subtracted in other steps. Otherwise small chunks
    would look slow, become smaller and look slower still.
    """
    if prefilled == 0:
        if decode_passes == 0:
            return pace
        return replace(pace, decode_seconds=_smooth(pace.decode_seconds, seconds / decode_passes))
    # The pace must not become infinite when the clock is too coarse for the step.
    spent = max(seconds - decode_passes * (pace.decode_seconds or 0.0), seconds / 10, 1e-6)
    return replace(
        pace,
        tokens_per_second=_smooth(pace.tokens_per_second, prefilled / spent),
        last_chunk=prefilled,
    )


def chunk_tokens(
    pace: PrefillPace,
    budget: StepBudget,
    *,
    sequences: int,
    longest_left: int,
    decoding: bool,
    largest: int,
) -> int:
    """Prompt tokens that each of the ``sequences`` in prefill may take in the next step.

    All of them together take at most ``largest`` tokens. At this ``pace`` the step, with its
    decode pass if the model is ``decoding``, takes at most the seconds of the budget. But prefill
    always goes on: together they take at least the smallest chunk of the budget, and each at least
    one token. ``longest_left`` is how many tokens the longest prompt still needs, without the last
    one (see ``observe``). The stretch of the budget applies if the step then ends this prompt.
    """
    sequences = max(sequences, 1)
    if pace.tokens_per_second is None:
        total = FIRST_CHUNK
    else:
        decode = (pace.decode_seconds or 0.0) if decoding else 0.0
        total = int(pace.tokens_per_second * max(budget.seconds - decode, 0.0))
        if pace.last_chunk is not None:
            total = min(total, GROWTH * max(pace.last_chunk, FIRST_CHUNK))
    total = min(max(total, budget.smallest), largest)
    if total < longest_left * sequences <= min(budget.stretch * total, largest):
        total = longest_left * sequences
    return max(total // sequences, 1)


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)
