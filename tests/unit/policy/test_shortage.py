import pytest

from omlxd.policy.pressure import Pause
from omlxd.policy.shortage import Mark, in_words, mark_of, shortage
from omlxd.units import GiB
from tests.unit.policy.scene import CEILING, HARD, SOFT, ceilings

RAISE = "Raise the custom ceiling."
CLOSE = "Close other apps or unload models."


@pytest.mark.parametrize(
    ("mark", "limit", "remedy", "words"),
    [
        (Mark.SOFT, SOFT, RAISE, "95.0GB of 90.0GB (the soft mark, set by the custom limit) is"),
        (Mark.HARD, HARD, RAISE, "95.0GB of 97.0GB (the hard mark, set by the custom limit) is"),
        (Mark.CEILING, CEILING, RAISE, "95.0GB of 100.0GB (the ceiling mark, set by the custom"),
        (Mark.RESUME, SOFT - 2 * GiB, RAISE, "95.0GB is in use, and new requests start below 88"),
        (Mark.OS_PRESSURE, None, CLOSE, "The system as a whole is critically short of memory; 95"),
    ],
)
def test_each_mark_is_told_with_its_bytes_and_its_remedy(
    mark: Mark, limit: int | None, remedy: str, words: str
) -> None:
    """Each names usage, the estimate, the limit, the mark that tripped, the binding term and its
    remedy"""
    facts = shortage(mark, 95 * GiB, 7 * GiB, ceilings())
    assert facts == {
        "usage_bytes": 95 * GiB,
        "estimate_bytes": 7 * GiB,
        "limit_bytes": limit,
        "mark": mark.value,
        "ceiling_bytes": CEILING,
        "binding": "os_pressure" if mark is Mark.OS_PRESSURE else "custom",
        "remedy": remedy,
    }
    told = in_words(facts)
    assert told.startswith(words)
    assert told.endswith(remedy)


def test_what_is_unknown_is_said_to_be() -> None:
    off = ceilings(enabled=False)
    told = in_words(shortage(Mark.SOFT, None, None, off))
    assert told == "An unknown amount (the soft mark) is in use."
    assert "below the resume mark" in in_words(shortage(Mark.RESUME, 0, None, off))


def test_every_pause_has_its_mark() -> None:
    assert [mark_of(pause) for pause in Pause] == [Mark.SOFT, Mark.RESUME, Mark.OS_PRESSURE]
