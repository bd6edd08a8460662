"""The level of memory pressure, emergencies, the pause of admission, and the poll interval."""

from enum import Enum, IntEnum

from omlxd.policy.ceiling import Ceilings
from omlxd.policy.readings import OsPressure
from omlxd.policy.tiers import (
    EMERGENCY_OVER_BYTES,
    EMERGENCY_OVER_POLLS,
    HINT_MINIMUM,
    POLL_EMPTY,
    POLL_LOADED,
    POLL_PRESSURE,
    RESUME_MARGIN,
)


class Level(IntEnum):
    """Pressure, in ascending order. Lower usage never gives a higher level."""

    OK = 0
    SOFT = 1
    HARD = 2

    @property
    def label(self) -> str:
        return self.name.lower()


class Pause(Enum):
    """Why new requests wait."""

    LEVEL = "level"
    """Usage has reached the soft mark."""
    RESUMING = "resuming"
    """Usage is below the soft mark again, but not yet below the resume mark."""
    SYSTEM = "os_pressure"
    """The operating system says that it is critically short of memory."""


def level_of(usage: int | None, ceilings: Ceilings) -> Level:
    """The level of ``usage``. Usage exactly at a mark has reached its level. Unknown usage is ok,
    and any usage is ok without a ceiling."""
    soft, hard = ceilings.soft, ceilings.hard
    if usage is None or soft is None or hard is None or usage < soft:
        return Level.OK
    return Level.SOFT if usage < hard else Level.HARD


def is_over(usage: int | None, ceilings: Ceilings) -> bool:
    """Whether usage has reached the ceiling itself."""
    ceiling = ceilings.ceiling
    return usage is not None and ceiling is not None and usage >= ceiling


def is_emergency(usage: int | None, ceilings: Ceilings, polls_over: int) -> bool:
    """Whether usage is far over the ceiling, or has reached it for the second poll in a row.

    ``polls_over`` counts the polls in a row at or over the ceiling, this one included.
    """
    ceiling = ceilings.ceiling
    if usage is None or ceiling is None or usage < ceiling:
        return False
    return usage >= ceiling + EMERGENCY_OVER_BYTES or polls_over >= EMERGENCY_OVER_POLLS


def resume_mark(ceilings: Ceilings) -> int | None:
    """Usage below which a paused admission resumes: 2 % of the ceiling under the soft mark."""
    ceiling, soft = ceilings.ceiling, ceilings.soft
    if ceiling is None or soft is None:
        return None
    # A soft mark of a few percent must still leave room to resume in.
    return max(soft - int(ceiling * RESUME_MARGIN), soft // 2)


def pause_of(
    was_paused: bool,
    usage: int | None,
    ceilings: Ceilings,
    os_pressure: OsPressure | None,
) -> Pause | None:
    """Why new requests wait; None if they do not. Unknown usage never makes a request wait."""
    mark = resume_mark(ceilings)
    if mark is None:
        return None
    if level_of(usage, ceilings) is not Level.OK:
        return Pause.LEVEL
    if os_pressure is OsPressure.CRITICAL:
        return Pause.SYSTEM
    return Pause.RESUMING if was_paused and usage is not None and usage >= mark else None


def request_may_start(*, paused: bool, loaded: bool, idle: bool, anything_loaded: bool) -> bool:
    """Whether the next request for a model may start now.

    A paused daemon must be able to recover, so an idle model always takes its first request.
    A model that is not loaded waits, unless no model is loaded at all.

    Args:
        paused: admission is paused.
        loaded: the model of the request is loaded.
        idle: that model has no running or prefilling request.
        anything_loaded: any model is loaded or being loaded.
    """
    if not paused:
        return True
    return idle if loaded else not anything_loaded


def poll_interval(
    level: Level, *, paused: bool, hinted: bool, loading: bool, active: bool | None, loaded: bool
) -> float:
    """Seconds until the next look.

    Args:
        level: of the last tick.
        paused: admission has not resumed yet.
        hinted: an activity hint is in force.
        loading: a model is being loaded.
        active: any engine has work; None when an engine cannot tell.
        loaded: any model is loaded.
    """
    if level is not Level.OK or paused or hinted or loading or active is None or active:
        return POLL_PRESSURE
    return POLL_LOADED if loaded else POLL_EMPTY


def activity_hint(until: float | None, now: float, interval: float) -> float:
    """The time until which activity is assumed after a wake that reports activity."""
    fresh = now + max(HINT_MINIMUM, 2 * interval)
    return fresh if until is None else max(until, fresh)
