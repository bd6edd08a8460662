"""Watches a started job until the new instance answers, or has failed for certain."""

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
from omlxd.service.exits import PERMANENT, LastExit, read_last_exit
from omlxd.service.supervisor import Clock, JobView, Supervisor

log = structlog.get_logger(__name__)

HEALTHY_WITHIN = 60.0
"""Seconds; the first start compiles Python files and may wait for a slow disk."""
NOTICED_WITHIN = 5.0
"""Seconds. By then the supervisor has surely noticed that a process ended."""
MOST_TRIES = 3
"""Starts of the job after a lost start, ``NOTICED_WITHIN`` apart."""
POLL = 0.25


@dataclass(frozen=True, slots=True)
class Baseline:
    """The content of the state folder before the job was started."""

    instance_id: str | None
    last_exit: LastExit | None


@dataclass(frozen=True, slots=True)
class Observation:
    """``health``: None when no address was known."""

    record: InstanceRecord | None
    last_exit: LastExit | None
    health: Health | None


@dataclass(frozen=True, slots=True)
class Started:
    record: InstanceRecord


@dataclass(frozen=True, slots=True)
class Pending:
    why: str


@dataclass(frozen=True, slots=True)
class Failed:
    why: str


Verdict = Started | Pending | Failed


def judge(before: Baseline, now: Observation) -> Verdict:
    """Pure. The instance of ``before`` never counts, even if it answers."""
    ended = now.last_exit if now.last_exit != before.last_exit else None
    if ended is not None and ended.ending in PERMANENT:
        return Failed(ended.message or f"the daemon ended at once: {ended.ending.value}")
    record = now.record
    if record is None or record.instance_id == before.instance_id:
        if ended is not None:
            return Pending(f"the daemon ended with {ended.code} ({ended.message})")
        return Pending("the daemon has not started")
    match now.health:
        case None:
            return Pending(f"the daemon (pid {record.pid}) has not opened its port")
        case Unhealthy(why):
            return Pending(why)
        case Healthy(instance_id):
            if instance_id == record.instance_id:
                return Started(record)
            return Pending(
                f"{record.url} is answered by another omlxd (instance {instance_id}), not by the "
                f"one just started (pid {record.pid}); stop that one"
            )
        case _:
            assert_never(now.health)


def has_run(before: Baseline, now: Baseline) -> bool:
    """Pure. Whether a process other than that of ``before`` has run since, even for a moment."""
    if now.instance_id not in (None, before.instance_id):
        return True
    last = now.last_exit
    if last is None or last == before.last_exit:
        return False
    return last.instance_id is None or last.instance_id != before.instance_id


class Watch:
    """Observes a state folder, and the daemon whose address is in it."""

    def __init__(
        self,
        state: Path,
        ask: Callable[[str], Health],
        clock: Clock,
        *,
        within: float = HEALTHY_WITHIN,
    ) -> None:
        self._state = state
        self._ask = ask
        self._clock = clock
        self._within = within

    @property
    def state(self) -> Path:
        return self._state

    def at(self, state: Path) -> "Watch":
        """The same limits for another data folder."""
        return Watch(state, self._ask, self._clock, within=self._within)

    def baseline(self) -> Baseline:
        record = read_record(self._state)
        return Baseline(None if record is None else record.instance_id, read_last_exit(self._state))

    def empty_baseline(self) -> Baseline:
        """A baseline without an instance, so the instance that runs now counts."""
        return Baseline(None, read_last_exit(self._state))

    def observe(self) -> Observation:
        """Observe the running instance; the record of a killed instance is ignored."""
        record = running(self._state)
        url = None if record is None else record.url
        return Observation(
            record=record,
            last_exit=read_last_exit(self._state),
            health=None if url is None else self._ask(url),
        )

    def until_up(self, before: Baseline, supervisor: Supervisor) -> InstanceRecord:
        """Wait for the new instance. Raises ServiceFailed with the reason, also at the limit."""
        began = self._clock.now()
        limit = began + self._within
        tries = [began + NOTICED_WITHIN * n for n in range(1, MOST_TRIES + 1)]
        while True:
            verdict = judge(before, self.observe())
            match verdict:
                case Started(record):
                    return record
                case Failed(why):
                    raise ServiceFailed(why)
                case Pending(why):
                    if self._clock.now() >= limit:
                        raise ServiceFailed(self._timeout_text(why, supervisor.view()))
                    if tries and self._clock.now() >= tries[0]:
                        tries.pop(0)
                        self._restart_if_lost(before, supervisor)
                    self._clock.sleep(POLL)
                case _:
                    assert_never(verdict)

    def until_ended(self, record: InstanceRecord, limit: float) -> bool:
        """Wait up to ``limit`` seconds. Returns whether the instance's process has ended."""
        until = self._clock.now() + limit
        while is_alive(record):
            if self._clock.now() >= until:
                return False
            self._clock.sleep(POLL)
        return True

    def until_noticed(self, pid: int, view: Callable[[], JobView], limit: float) -> bool:
        """Whether the supervisor notices within ``limit`` seconds that its process ``pid`` ended.

        Until then the supervisor believes that the job runs, so a start does nothing.
        """
        until = self._clock.now() + limit
        while view().pid == pid:
            if self._clock.now() >= until:
                return False
            self._clock.sleep(POLL)
        return True

    def _restart_if_lost(self, before: Baseline, supervisor: Supervisor) -> None:
        """Start the job again if no process has run since ``before``.

        A start is lost when the old process had not ended yet. Also, launchd never starts some
        jobs. If a process ran and died, the supervisor restarts it at its own pace, not this
        method. An unknown pid (``list`` over SSH) is no risk: starting a running job does nothing.
        """
        if has_run(before, self.baseline()):
            return
        try:
            job = supervisor.view()
            if job.loaded and job.pid is None:
                supervisor.start()
        except ServiceFailed as error:
            # launchd may start it by itself a moment later, or has done so already.
            log.info("start_not_made_again", reason=error.message)

    def _timeout_text(self, why: str, job: JobView) -> str:
        text = f"not healthy after {self._within:.0f} s: {why}"
        if job.pid is not None and running(self._state) is None:
            return (
                f"{text}. Its process {job.pid} runs and has left no record in {self._state}: "
                "it has just started, or the disk is full"
            )
        if job.pid is None and job.last_exit is not None:
            text += f". The supervisor says that it last ended with {job.last_exit}"
        return text
