"""One sequence to generate, in tokens: plain frozen data that crosses to the device thread."""

from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. ``None`` means that the parameter is not applied.

    Attributes:
        temperature: 0 is greedy.
        top_p: nucleus mass in (0, 1]; top_k: at least 1.
        min_p: share of the top probability, [0, 1].
        seed: makes this request reproducible, independently of other requests.
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
    """What to generate for one request.

    Attributes:
        prompt: token ids, at least one.
        max_tokens: at least 1; the finish reason is LENGTH when it is reached.
        stop_tokens: token ids that end the answer (end of sequence); not part of its text.
        top_logprobs: None for no log probabilities; N for the chosen token and the N best.
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
        logprob: natural log of its probability; None when the request did not ask for it.
        top: the best (token id, log probability), most likely first.
        finish: set on the last token only. A stop token ends the answer. It is reported and
            counts as a completion token, but it is not part of the text.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    finish: FinishReason | None = None
