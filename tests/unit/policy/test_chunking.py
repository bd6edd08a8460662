"""How much prompt one step takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlxd.policy.chunking import (
    FIRST_CHUNK,
    GROWTH,
    SMALLEST_ALONE,
    SMALLEST_CHUNK,
    STRETCH_ALONE,
    PrefillPace,
    StepBudget,
    chunk_tokens,
    observe,
    step_budget,
)


def chunk(
    pace: PrefillPace,
    *,
    seconds: float = 0.5,
    sequences: int = 1,
    decoding: bool = False,
    smallest: int = SMALLEST_CHUNK,
    stretch: float = 1.0,
    longest_left: int = 10**6,
) -> int:
    return chunk_tokens(
        pace,
        StepBudget(seconds, smallest, stretch),
        sequences=sequences,
        longest_left=longest_left,
        decoding=decoding,
        largest=2048,
    )


def test_while_something_decodes_prefilling_models_share_the_stall() -> None:
    times = {"decode_stall": 0.6, "longest_step": 1.0}
    shared = step_budget(**times, prefilling_models=3, decoding=True)
    assert (shared.seconds, shared.smallest) == (pytest.approx(0.2), SMALLEST_CHUNK)
    assert step_budget(**times, prefilling_models=0, decoding=True).seconds == 0.6


def test_with_nobody_decoding_a_step_may_be_long() -> None:
    times = {"decode_stall": 0.6, "longest_step": 1.0}
    assert step_budget(**times, prefilling_models=3, decoding=False) == StepBudget(
        1.0, SMALLEST_ALONE, STRETCH_ALONE
    )


def test_the_stall_never_exceeds_the_longest_step() -> None:
    budget = step_budget(decode_stall=5.0, longest_step=1.0, prefilling_models=1, decoding=True)
    assert budget.seconds == 1.0


def test_an_unknown_pace_starts_small() -> None:
    assert chunk(PrefillPace()) == FIRST_CHUNK


def test_a_known_pace_fills_the_time_there_is() -> None:
    pace = PrefillPace(tokens_per_second=1000, last_chunk=2048)
    assert chunk(pace) == 500
    assert chunk(pace, seconds=1.0) == 1000


def test_the_decode_part_of_a_step_is_taken_off_while_something_decodes() -> None:
    pace = PrefillPace(tokens_per_second=1000, decode_seconds=0.1, last_chunk=2048)
    assert chunk(pace, decoding=True) == 400
    assert chunk(pace, decoding=False) == 500


def test_a_fast_machine_takes_the_largest_chunk() -> None:
    assert chunk(PrefillPace(tokens_per_second=1e6, last_chunk=2048)) == 2048


def test_several_prompts_share_a_chunk() -> None:
    pace = PrefillPace(tokens_per_second=1000, last_chunk=2048)
    assert chunk(pace, sequences=4) == 125


def test_a_chunk_grows_only_so_fast() -> None:
    pace = PrefillPace(tokens_per_second=1e6, last_chunk=200)
    assert chunk(pace) == 200 * GROWTH


def test_a_small_rest_is_taken_along_with_nobody_decoding() -> None:
    pace = PrefillPace(tokens_per_second=800, last_chunk=2048)
    assert chunk(pace, seconds=1.0, sequences=8, stretch=1.25, longest_left=125) == 125
    assert chunk(pace, seconds=1.0, sequences=8, stretch=1.25, longest_left=126) == 100
    assert chunk(pace, seconds=1.0, sequences=8, stretch=1.25, longest_left=60) == 100
    assert chunk(pace, seconds=1.0, sequences=8, longest_left=125) == 100


def test_the_largest_chunk_is_never_stretched() -> None:
    pace = PrefillPace(tokens_per_second=1e6, last_chunk=2048)
    assert chunk(pace, stretch=1.25, longest_left=2100) == 2048


def test_prefill_goes_on_however_slow_the_machine() -> None:
    pace = PrefillPace(tokens_per_second=0.1, decode_seconds=9.0, last_chunk=16)
    assert chunk(pace, decoding=True) == SMALLEST_CHUNK
    assert chunk(pace, decoding=True, sequences=64) == 1


def test_decode_time_is_learned_from_steps_that_only_decode() -> None:
    pace = observe(PrefillPace(), prefilled=0, decode_passes=1, seconds=0.2)
    assert pace == PrefillPace(decode_seconds=0.2)
    mixed = observe(pace, prefilled=300, decode_passes=1, seconds=0.5)
    assert mixed.tokens_per_second == 300 / (0.5 - 0.2)
    assert mixed.decode_seconds == 0.2


def test_the_end_of_a_prompt_teaches_nothing_of_prefill() -> None:
    known = PrefillPace(tokens_per_second=1000, decode_seconds=0.1, last_chunk=512)
    pace = observe(known, prefilled=0, decode_passes=2, seconds=0.2)
    assert pace == known
    mixed = observe(known, prefilled=300, decode_passes=2, seconds=0.5)
    assert mixed.tokens_per_second == pytest.approx(1000)


def test_a_step_that_did_nothing_teaches_nothing() -> None:
    assert observe(PrefillPace(), prefilled=0, decode_passes=0, seconds=9) == PrefillPace()


def test_a_step_too_short_to_time_does_not_make_the_pace_infinite() -> None:
    pace = observe(PrefillPace(), prefilled=10, decode_passes=0, seconds=0.0)
    assert pace.tokens_per_second is not None
    assert pace.tokens_per_second <= 1e8


@given(
    rate=st.floats(1, 1e6),
    decode=st.floats(0, 0.4),
    seconds=st.floats(0.1, 1.0),
    sequences=st.integers(1, 16),
    prompt=st.integers(3_000, 60_000),
)
def test_steps_keep_to_their_time_once_the_pace_is_known(
    rate: float, decode: float, seconds: float, sequences: int, prompt: int
) -> None:
    """Aimed at the stall: a machine of constant speed, a batch that decodes all the while."""
    pace = observe(PrefillPace(), prefilled=0, decode_passes=1, seconds=decode)
    done = steps = 0
    while done < prompt and steps < 200:
        size = chunk(pace, seconds=seconds, sequences=sequences, decoding=True) * sequences
        took = decode + size / rate
        if steps > 0 and size > max(SMALLEST_CHUNK, sequences):
            assert took <= seconds * 1.01
        pace = observe(pace, prefilled=size, decode_passes=1, seconds=took)
        done += size
        steps += 1
    assert done > 0
