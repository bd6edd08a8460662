import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlxd.policy.pressure import (
    Level,
    Pause,
    activity_hint,
    is_emergency,
    is_over,
    level_of,
    pause_of,
    poll_interval,
    request_may_start,
    resume_mark,
)
from omlxd.policy.readings import OsPressure
from omlxd.units import GiB
from tests.unit.policy.scene import CEILING, HARD, SOFT, ceilings

BOUNDS = ceilings()
RESUME = SOFT - 2 * GiB


@pytest.mark.parametrize(
    ("usage", "level"),
    [
        (0, Level.OK),
        (SOFT - 1, Level.OK),
        (SOFT, Level.SOFT),
        (HARD - 1, Level.SOFT),
        (HARD, Level.HARD),
        (CEILING, Level.HARD),
        (5 * CEILING, Level.HARD),
    ],
)
def test_a_mark_belongs_to_its_own_level(usage: int, level: Level) -> None:
    """ok: usage < soft mark; soft: soft <= usage < hard; hard: usage >= hard."""
    assert level_of(usage, BOUNDS) is level


def test_marks_are_fractions_of_the_ceiling_of_this_tick() -> None:
    """Marks are fractions of the ceiling recomputed each tick."""
    assert level_of(SOFT, ceilings(dynamic=CEILING + 2 * GiB)) is Level.OK
    assert level_of(SOFT, ceilings(dynamic=SOFT)) is Level.HARD


def test_unknown_usage_or_no_ceiling_is_ok() -> None:
    """Guard off = no ceiling: level stays ok"""
    assert level_of(None, BOUNDS) is Level.OK
    assert level_of(9 * CEILING, ceilings(enabled=False)) is Level.OK
    assert not is_over(None, BOUNDS)
    assert not is_over(9 * CEILING, ceilings(enabled=False))


@given(
    ceiling=st.integers(1, 600 * GiB),
    fraction=st.sampled_from(["soft", "hard", "ceiling"]),
    offset=st.integers(-3, 3),
    more=st.integers(0, 5) | st.integers(0, 100 * GiB),
)
def test_more_use_is_never_a_lower_level(
    ceiling: int, fraction: str, offset: int, more: int
) -> None:
    bounds = ceilings(static=ceiling, dynamic=None)
    usage = max(0, getattr(bounds, fraction) + offset)
    assert level_of(usage, bounds) <= level_of(usage + more, bounds)
    assert is_emergency(usage, bounds, 1) <= is_emergency(usage + more, bounds, 1)
    if pause_of(False, usage, bounds, None):
        assert pause_of(False, usage + more, bounds, None)
        assert pause_of(True, usage, bounds, None)


@pytest.mark.parametrize(
    ("usage", "polls_over", "emergency"),
    [
        (HARD, 9, False),
        (CEILING - 1, 9, False),
        (CEILING, 0, False),
        (CEILING, 1, False),
        (CEILING, 2, True),
        (CEILING + 2 * GiB - 1, 1, False),
        (CEILING + 2 * GiB, 0, True),
        (CEILING + 2 * GiB, 1, True),
    ],
)
def test_an_emergency_is_far_over_or_over_twice(
    usage: int, polls_over: int, emergency: bool
) -> None:
    """emergency: usage >= ceiling, and either >= ceiling + 2 GiB or for the second poll in a row.
    The hard mark alone is never an emergency."""
    assert is_emergency(usage, BOUNDS, polls_over) is emergency
    assert not is_emergency(usage, ceilings(enabled=False), polls_over)
    assert not is_emergency(None, BOUNDS, polls_over)


@pytest.mark.parametrize(
    ("was", "usage", "pause"),
    [
        (False, SOFT - 1, None),
        (False, SOFT, Pause.LEVEL),
        (False, HARD, Pause.LEVEL),
        (True, HARD, Pause.LEVEL),
        (True, SOFT - 1, Pause.RESUMING),
        (True, RESUME, Pause.RESUMING),
        (True, RESUME - 1, None),
        (False, RESUME, None),
    ],
)
def test_admission_pauses_at_the_mark_and_resumes_below_it(
    was: bool, usage: int, pause: Pause | None
) -> None:
    """Admission of new requests pauses when the level is not ok; Admission resumes only 2 % of
    the ceiling below the soft mark, so it does not flap at the line"""
    assert resume_mark(BOUNDS) == RESUME
    assert pause_of(was, usage, BOUNDS, None) is pause


@given(st.lists(st.integers(-GiB, GiB), min_size=1, max_size=30))
def test_noise_inside_the_margin_does_not_flap(noise: list[int]) -> None:
    """so it does not flap at the line"""
    paused, changes = False, 0
    for offset in noise:
        now = pause_of(paused, SOFT + offset, BOUNDS, None) is not None
        changes += now is not paused
        paused = now
    assert changes <= 1


def test_a_tiny_soft_mark_still_leaves_room_to_resume() -> None:
    bounds = ceilings(soft_fraction=0.01)
    assert pause_of(True, 0, bounds, None) is None


@pytest.mark.parametrize("was", [False, True])
@pytest.mark.parametrize(
    ("usage", "pause"),
    [(0, Pause.SYSTEM), (None, Pause.SYSTEM), (RESUME, Pause.SYSTEM), (SOFT, Pause.LEVEL)],
)
def test_a_critical_system_pauses_admission(usage: int | None, pause: Pause, was: bool) -> None:
    """ "critical" pauses admission as a soft level does"""
    assert pause_of(was, usage, BOUNDS, OsPressure.CRITICAL) is pause
    assert pause_of(was, usage, ceilings(enabled=False), OsPressure.CRITICAL) is None
    assert pause_of(False, 0, BOUNDS, OsPressure.WARNING) is None


def test_unknown_usage_holds_nobody_up() -> None:
    """a frozen one refuses nothing for ever"""
    assert pause_of(True, None, BOUNDS, None) is None


@pytest.mark.parametrize(
    ("paused", "loaded", "idle", "anything", "starts"),
    [
        (False, False, False, True, True),
        (False, True, False, True, True),
        (True, True, True, True, True),
        (True, True, False, True, False),
        (True, False, False, True, False),
        (True, False, True, True, False),
        (True, False, False, False, True),
    ],
)
def test_a_paused_daemon_takes_the_first_request_of_an_idle_model(
    paused: bool, loaded: bool, idle: bool, anything: bool, starts: bool
) -> None:
    """The first request of an idle model always passes, so a paused daemon can recover; the first
    request of a model that is not loaded waits unless nothing at all is loaded."""
    answer = request_may_start(paused=paused, loaded=loaded, idle=idle, anything_loaded=anything)
    assert answer is starts


CALM = {
    "paused": False,
    "hinted": False,
    "loading": False,
    "active": False,
    "loaded": True,
}


@pytest.mark.parametrize(
    ("level", "changed", "seconds"),
    [
        (Level.SOFT, {}, 1.0),
        (Level.HARD, {}, 1.0),
        (Level.OK, {"hinted": True}, 1.0),
        (Level.OK, {"loading": True}, 1.0),
        (Level.OK, {"active": True}, 1.0),
        (Level.OK, {"active": None}, 1.0),
        (Level.OK, {"active": None, "loaded": False}, 1.0),
        (Level.OK, {"paused": True}, 1.0),
        (Level.OK, {}, 10.0),
        (Level.OK, {"loaded": False}, 30.0),
    ],
)
def test_the_pace_follows_what_goes_on(
    level: Level, changed: dict[str, bool | None], seconds: float
) -> None:
    """1 s while the level is not ok, an activity hint is live, a model is loading, or any engine
    is active or cannot say; 10 s with models loaded and idle; 30 s with none. The pace stays 1 s
    until it has resumed."""
    assert poll_interval(level, **{**CALM, **changed}) == seconds  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("until", "interval", "expected"),
    [(None, 1.0, 102.0), (None, 10.0, 120.0), (150.0, 10.0, 150.0), (101.0, 0.5, 102.0)],
)
def test_a_wake_extends_the_activity_hint(
    until: float | None, interval: float, expected: float
) -> None:
    """wake(active=True) sets the hint to max(old, now + max(2 s, 2 x interval))."""
    assert activity_hint(until, 100.0, interval) == expected
