"""One step of one model as plain data: the plan and its result.

Nothing here depends on how a plan is executed. Everything can be compared and pickled.
"""

from dataclasses import dataclass

from omlxd.backend.sequence import NewToken, SequenceSpec
from omlxd.errors import GenerationFailed, OmlxdError


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A handle of the KV cache of some tokens, kept outside the batch.

    The executor of the plan that saved the state keeps the arrays, under ``key``.

    Attributes:
        tokens: how many tokens the cache holds.
        bytes: bytes that the cache takes.
    """

    key: str
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class EnteringSequence:
    """A sequence that joins the batch.

    Attributes:
        answer: the tokens that it has generated already.
        state: the KV cache of the first tokens of prompt and answer, never including the last
            token; None computes all of them.
    """

    spec: SequenceSpec
    answer: tuple[int, ...] = ()
    state: SequenceState | None = None

    @property
    def prefill_tokens(self) -> int:
        """Tokens that must be in the cache before the next token can be generated."""
        return len(self.spec.prompt) + len(self.answer)

    @property
    def cached_tokens(self) -> int:
        return 0 if self.state is None else self.state.tokens


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does, in the order of the fields. Sequences are named by their ids.

    Attributes:
        save: (id, key): keep the state of this sequence under this key.
        leave: sequences that leave the batch.
        forget: keys of states that are needed no more.
        enter: sequences that join the batch, in order.
        decode: sequences that generate one token each.
        prefill: (id, tokens): sequences in prefill, and how many tokens each takes at most.
    """

    save: tuple[tuple[str, str], ...] = ()
    leave: tuple[str, ...] = ()
    forget: tuple[str, ...] = ()
    enter: tuple[EnteringSequence, ...] = ()
    decode: tuple[str, ...] = ()
    prefill: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Prefilled:
    """How many prompt tokens of a sequence are in its cache, and their total.

    ``cached`` of them came from a state and were not computed.
    """

    request_id: str
    done: int
    total: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class SavedSequence:
    """What a sequence needs to go on later: with its spec, the fields of EnteringSequence.

    ``state`` is None if nothing was computed yet.
    """

    id: str
    answer: tuple[int, ...]
    state: SequenceState | None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did.

    Attributes:
        prefilled: a sequence that is done decodes from the next step on.
        tokens: (id, token). A sequence whose token has ``finish`` set has left the batch. A
            sequence that was saved and left while it decoded has one more token here.
        failed: (id, error) of sequences that could not join, or that failed alone and left.
        left: sequences that left because the plan said so.
        cache_bytes: KV cache of the sequences in the batch.
        lost: the step failed, and the batch with all its sequences is gone.
    """

    prefilled: tuple[Prefilled, ...] = ()
    tokens: tuple[tuple[str, NewToken], ...] = ()
    failed: tuple[tuple[str, OmlxdError], ...] = ()
    left: tuple[str, ...] = ()
    saved: tuple[SavedSequence, ...] = ()
    cache_bytes: int = 0
    lost: OmlxdError | None = None


def step_failure(error: Exception) -> OmlxdError:
    """``error`` in the form that the requests in a failed step get."""
    if isinstance(error, OmlxdError):
        return error.again()
    return GenerationFailed(
        f"A step of the model failed ({type(error).__name__}: {error}). "
        "Only the requests in it are affected; trying again is safe."
    )
