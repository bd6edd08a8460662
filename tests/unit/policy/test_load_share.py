"""The share of the device's time that a load takes while requests run."""

from hypothesis import given
from hypothesis import strategies as st

from omlxd.policy.load_share import LoadPace, after_piece, after_steps, may_load, may_load_again

SHARE, MOST = 0.3, 0.5


def run(piece: float, step: float, seconds: float, share: float = SHARE) -> tuple[float, int]:
    """Alternate steps and pieces as the device thread does: (seconds of pieces, pieces)."""
    now, loading, pieces, pace = 0.0, 0.0, 0, LoadPace()
    while now < seconds:
        if not may_load_again(pace):
            now += step
        pace = after_steps(pace, now, share=share, most=MOST)
        if may_load(pace):
            now, loading, pieces = now + piece, loading + piece, pieces + 1
            pace = after_piece(pace, now)
    return loading, pieces


def test_small_pieces_take_their_share_of_short_steps() -> None:
    loading, _ = run(piece=0.001, step=0.02, seconds=100.0)
    assert abs(loading / 100.0 - SHARE) < 0.01


def test_a_large_piece_is_paid_for_by_many_steps() -> None:
    loading, pieces = run(piece=0.3, step=0.02, seconds=100.0)
    assert pieces > 1
    assert loading / 100.0 <= SHARE + 0.01


def test_long_steps_are_followed_by_many_pieces() -> None:
    loading, pieces = run(piece=0.01, step=1.0, seconds=100.0)
    assert pieces > 1000
    assert loading / 100.0 > SHARE - 0.05


def test_what_was_saved_up_is_bounded() -> None:
    pace = after_steps(LoadPace(at=0.0), 1000.0, share=SHARE, most=MOST)
    assert pace.credit == MOST


def test_the_first_piece_is_free_to_begin_and_brings_no_old_credit() -> None:
    pace = after_steps(LoadPace(), 1000.0, share=SHARE, most=MOST)
    assert may_load(pace)
    assert not may_load_again(pace)


def test_without_a_clock_that_moves_steps_and_pieces_alternate() -> None:
    pace = LoadPace()
    for _ in range(5):
        pace = after_steps(pace, 7.0, share=SHARE, most=MOST)
        assert may_load(pace)
        pace = after_piece(pace, 7.0)
        assert not may_load_again(pace)


@given(
    piece=st.floats(0.01, 2.0),
    step=st.floats(0.01, 2.0),
    share=st.floats(0.05, 0.9),
)
def test_the_share_is_never_exceeded_and_the_load_always_goes_on(
    piece: float, step: float, share: float
) -> None:
    seconds = 10.0
    loading, pieces = run(piece, step, seconds, share)
    assert loading <= share * (seconds + piece + step) + piece
    waits = step + piece * (1 - share) / share
    assert pieces >= int(seconds / (waits + piece + step))
