"""One sequence to generate, in tokens: plain frozen data for both sides of the device thread."""

from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. ``None`` means the step is not applied.

    Attributes:
        temperature: 0 is greedy.
        top_p: nucleus mass in (0, 1]; top_k: at least 1.
        min_p: share of the top probability, [0, 1].
        seed: makes this request reproducible whatever runs beside it.
        repetition_penalty: multiplicative, over prompt and answer; 1 changes nothing.
        presence_penalty, frequency_penalty: additive, over the answer so far.
        logit_bias: (token id, bias added to its logit).
    """

    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """What one client wants generated: prompt tokens in, new tokens out.

    Attributes:
        prompt: token ids, at least one.
        max_tokens: at least 1; the finishing reason is LENGTH when it is reached.
        stop_tokens: token ids that end the answer (end of sequence); not part of its text.
        top_logprobs: None for no log probabilities; N for the chosen token's and the N best.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_tokens: frozenset[int] = frozenset()
    top_logprobs: int | None = None


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class NewToken:
    """One generated token.

    Attributes:
        logprob: natural log of its probability; None unless asked for.
        top: the best (token id, log probability), most likely first.
        finish: set on the last token only. A stop token ends the answer and is itself
            reported (it counts as a completion token) but is not part of the text.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    finish: FinishReason | None = None
