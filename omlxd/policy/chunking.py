"""How many prompt tokens the next step may prefill, from the time that earlier steps took."""

from dataclasses import dataclass, replace

SMALLEST_CHUNK = 32
"""However slow the machine: each chunk reads all weights, so smaller ones cost as much."""
SMALLEST_ALONE = 128
"""The same when nobody waits for a next token."""
FIRST_CHUNK = 128
"""Tokens to try on a model whose pace is unknown."""
GROWTH = 4
"""A chunk is at most this many times the last one: the pace of a small chunk is a poor
predictor of a large one."""
STRETCH_ALONE = 1.5
"""A rest this many times a chunk is taken whole: a pass of its own would read all weights again."""
_SMOOTHING = 0.5


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What one step of one model may take.

    Attributes:
        seconds: that the step should not exceed.
        smallest: prompt tokens it may take whatever the time.
        stretch: by how much it may grow where that saves the prompts another step.
    """

    seconds: float
    smallest: int
    stretch: float = 1.0


def step_budget(
    *, decode_stall: float, longest_step: float, prefilling_models: int, decoding: bool
) -> StepBudget:
    """The budget of each model's step in a round.

    While anything decodes on any model, it waits for the steps of all: those that prefill share
    the ``decode_stall`` seconds. Otherwise a step takes up to ``longest_step``.
    """
    if decoding:
        return StepBudget(
            min(decode_stall, longest_step) / max(prefilling_models, 1), SMALLEST_CHUNK
        )
    return StepBudget(longest_step, SMALLEST_ALONE, STRETCH_ALONE)


@dataclass(frozen=True, slots=True)
class PrefillPace:
    """What one model's steps have shown so far. ``None`` is not known yet.

    Attributes:
        tokens_per_second: of prefill, over all sequences together.
        decode_seconds: one decode pass, whether of the running batch or of a prompt's end.
        last_chunk: tokens of the latest prefill, over all sequences together.
    """

    tokens_per_second: float | None = None
    decode_seconds: float | None = None
    last_chunk: int | None = None


def observe(
    pace: PrefillPace, *, prefilled: int, decode_passes: int, seconds: float
) -> PrefillPace:
    """``pace`` after a step of ``seconds``.

    ``prefilled`` counts its prompt tokens without each prompt's last, which goes through a decode
    pass of its own; ``decode_passes`` counts these and that of the running batch. What passes
    take is learned from steps without prefill and taken off the others, or small chunks would
    look slow, become smaller and look slower still.
    """
    if prefilled == 0:
        if decode_passes == 0:
            return pace
        return replace(pace, decode_seconds=_smooth(pace.decode_seconds, seconds / decode_passes))
    # A clock too coarse to see the step must not make the pace infinite.
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
    """Prompt tokens that each of ``sequences`` prefilling ones may take in the next step.

    All of them together take at most ``largest`` tokens and, going by ``pace``, the whole step
    at most the budget's seconds, its decode pass (when the model is ``decoding``) included. Never
    less than the budget's smallest together, nor than one token each: prefill always goes on.
    ``longest_left`` is what the longest of their prompts lacks, the last token not counted, as in
    ``observe``; the budget's stretch may serve to finish it.
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
