"""A request for generated text, the same for every protocol."""

from dataclasses import dataclass

from omlxd.backend.sequence import SequenceSpec
from omlxd.text.protocol import Tokenizer


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request, ready for the engine.

    Attributes:
        fingerprint: of the model files that the tokens of ``sequences`` were made with.
        sequences: one for each choice, in order.
        stops: stop strings, none of them empty.
        continues: the text continues the prompt (a completion) and does not begin a new one.
    """

    id: str
    model_id: str
    fingerprint: str
    tokenizer: Tokenizer
    sequences: tuple[SequenceSpec, ...]
    stops: tuple[str, ...]
    continues: bool
