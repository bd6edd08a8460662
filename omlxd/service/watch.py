"""Watches a started job until surely our new instance answers, or it has surely failed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import structlog

from omlxd.errors import ServiceFailed
from omlxd.instance import (
    Health,
    Healthy,
    InstanceRecord,
    Unhealthy,
    is_alive,
    read_record,
    running,
)
from omlxd.service import last_exit
from omlxd.service.exit_codes import PERMANENT
from omlxd.service.last_exit import LastExit
from omlxd.service.supervisor import JobView, Pace, Supervisor

log = structlog.get_logger(__name__)

HEALTHY_WITHIN = 60.0
"""Seconds; a first start writes byte code and may wait for a slow disk."""
NOTICED_WITHIN = 5.0
"""Seconds after which a supervisor surely knows of a process that has ended."""
MOST_TRIES = 3
"""For a start that was lost; they are ``NOTICED_WITHIN`` apart."""
POLL = 0.25


@dataclass(frozen=True, slots=True)
class Before:
    """What the state folder said before the job was started."""

    instance_id: str | None
    last_exit: LastExit | None


@dataclass(frozen=True, slots=True)
class Look:
    """``health`` None: there was no address to ask."""

    record: InstanceRecord | None
    last_exit: LastExit | None
    health: Health | None


@dataclass(frozen=True, slots=True)
class Up:
    record: InstanceRecord


@dataclass(frozen=True, slots=True)
class Waiting:
    why: str


@dataclass(frozen=True, slots=True)
class Failed:
    why: str


Verdict = Up | Waiting | Failed


def judge(before: Before, now: Look) -> Verdict:
    """Pure. A process that was there before never counts, whatever it answers."""
    ended = now.last_exit if now.last_exit != before.last_exit else None
    if ended is not None and ended.ending in PERMANENT:
        return Failed(ended.message or f"the daemon ended at once: {ended.ending.value}")
    record = now.record
    if record is None or record.instance_id == before.instance_id:
        if ended is not None:
            return Waiting(f"the daemon ended with {ended.code} ({ended.message})")
        return Waiting("the daemon has not started")
    match now.health:
        case None:
            return Waiting(f"the daemon (pid {record.pid}) has not opened its port")
        case Unhealthy(why):
            return Waiting(why)
        case Healthy(instance_id):
            if instance_id == record.instance_id:
                return Up(record)
            return Waiting(
                f"{record.url} is answered by another omlxd (instance {instance_id}), not by the "
                f"one just started (pid {record.pid}); stop that one"
            )
        case _:
            assert_never(now.health)


def has_run(before: Before, now: Before) -> bool:
    """Pure. Whether a process other than the one from before has lived since, however shortly."""
    if now.instance_id not in (None, before.instance_id):
        return True
    last = now.last_exit
    if last is None or last == before.last_exit:
        return False
    return last.instance_id is None or last.instance_id != before.instance_id


class Watch:
    """Looks at a state folder and at the address found in it."""

    def __init__(
        self,
        state: Path,
        ask: Callable[[str], Health],
        pace: Pace,
        *,
        within: float = HEALTHY_WITHIN,
    ) -> None:
        self._state = state
        self._ask = ask
        self._pace = pace
        self._within = within

    @property
    def state(self) -> Path:
        return self._state

    def at(self, state: Path) -> "Watch":
        """The same patience with another data folder."""
        return Watch(state, self._ask, self._pace, within=self._within)

    def before(self) -> Before:
        record = read_record(self._state)
        return Before(None if record is None else record.instance_id, last_exit.read(self._state))

    def before_any(self) -> Before:
        """As if nothing had run before, so that the instance running now counts."""
        return Before(None, last_exit.read(self._state))

    def look(self) -> Look:
        """The running instance only; a record that a killed one left is none."""
        record = running(self._state)
        url = None if record is None else record.url
        return Look(
            record=record,
            last_exit=last_exit.read(self._state),
            health=None if url is None else self._ask(url),
        )

    def until_up(self, before: Before, supervisor: Supervisor) -> InstanceRecord:
        """The new instance. Raises ServiceFailed with the reason, after the limit at the latest."""
        began = self._pace.now()
        limit = began + self._within
        tries = [began + NOTICED_WITHIN * n for n in range(1, MOST_TRIES + 1)]
        while True:
            verdict = judge(before, self.look())
            match verdict:
                case Up(record):
                    return record
                case Failed(why):
                    raise ServiceFailed(why)
                case Waiting(why):
                    if self._pace.now() >= limit:
                        raise ServiceFailed(self._too_late(why, supervisor.view()))
                    if tries and self._pace.now() >= tries[0]:
                        tries.pop(0)
                        self._start_if_lost(before, supervisor)
                    self._pace.sleep(POLL)
                case _:
                    assert_never(verdict)

    def until_ended(self, record: InstanceRecord, limit: float) -> bool:
        """Whether this instance's process ended within ``limit`` seconds."""
        until = self._pace.now() + limit
        while is_alive(record):
            if self._pace.now() >= until:
                return False
            self._pace.sleep(POLL)
        return True

    def until_noticed(self, pid: int, view: Callable[[], JobView], limit: float) -> bool:
        """Whether the supervisor says within ``limit`` seconds that ``pid`` is no more its process.

        To start the job before is to start nothing.
        """
        until = self._pace.now() + limit
        while view().pid == pid:
            if self._pace.now() >= until:
                return False
            self._pace.sleep(POLL)
        return True

    def _start_if_lost(self, before: Before, supervisor: Supervisor) -> None:
        """A start is lost when the process before had not ended, and some jobs are never started.

        What has run and died is the supervisor's to start again, at its own pace. Where the
        supervisor does not say (``list`` over SSH), one that runs is left alone.
        """
        if has_run(before, self.before()):
            return
        try:
            job = supervisor.view()
            if job.loaded and job.pid is None:
                supervisor.start()
        except ServiceFailed as error:
            # A moment later launchd may do it, or may have done it by itself.
            log.info("start_not_made_again", reason=error.message)

    def _too_late(self, why: str, job: JobView) -> str:
        text = f"not healthy after {self._within:.0f} s: {why}"
        if job.pid is not None and running(self._state) is None:
            return (
                f"{text}. Its process {job.pid} runs and has left no record in {self._state}: "
                "it has just started, or the disk is full"
            )
        if job.pid is None and job.last_exit is not None:
            text += f". The supervisor says that it last ended with {job.last_exit}"
        return text
