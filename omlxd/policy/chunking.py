"""How many prompt tokens the next step may prefill, from the time that earlier steps took."""

from dataclasses import dataclass, replace

SMALLEST_CHUNK = 16
"""Below this a chunk costs nearly as much as its first token; progress matters more."""
FIRST_CHUNK = 128
"""Tokens to try on a model whose pace is unknown."""
GROWTH = 4
"""A chunk is at most this many times the last one: the pace of a small chunk is a poor
predictor of a large one."""
_SMOOTHING = 0.5


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
    pace: PrefillPace, *, seconds: float, sequences: int, decoding: int, largest: int
) -> int:
    """Prompt tokens that each of ``sequences`` prefilling ones may take in the next step.

    All of them together take at most ``largest`` tokens and, going by ``pace``, the whole step
    at most ``seconds``, its decode part (when ``decoding`` sequences run) included. Never less
    than one token each, and together never less than ``SMALLEST_CHUNK``: prefill always goes on.
    """
    sequences = max(sequences, 1)
    if pace.tokens_per_second is None:
        total = FIRST_CHUNK
    else:
        decode = (pace.decode_seconds or 0.0) if decoding else 0.0
        total = int(pace.tokens_per_second * max(seconds - decode, 0.0))
        if pace.last_chunk is not None:
            total = min(total, GROWTH * max(pace.last_chunk, FIRST_CHUNK))
    total = max(min(total, largest), min(SMALLEST_CHUNK, largest))
    return max(total // sequences, 1)


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)
