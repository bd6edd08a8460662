"""Our job in one launchd domain: loads it, stops it and looks at it, through ``launchctl``."""

from pathlib import Path
from typing import assert_never

import structlog

from omlxd.errors import ServiceFailed
from omlxd.service.domains import Domain
from omlxd.service.launchctl import Code, Launchctl, Outcome
from omlxd.service.names import EXIT_TIMEOUT
from omlxd.service.steps import (
    Again,
    Done,
    GiveUp,
    Presence,
    after_bootstrap,
    bootout_is_under_way,
    ended_how,
    explain,
    presence,
)
from omlxd.service.supervisor import JobView, Pace

log = structlog.get_logger(__name__)

GONE_WITHIN = EXIT_TIMEOUT + 5.0
POLL = 0.25


class LaunchdJob:
    """A ``Supervisor``. The plist is written by the caller."""

    def __init__(
        self, launchctl: Launchctl, domain: Domain, label: str, folder: Path, pace: Pace
    ) -> None:
        """``folder``: where plists of this domain lie."""
        self._launchctl = launchctl
        self._domain = domain
        self._label = label
        self._target = domain.target(label)
        self._folder = folder
        self._pace = pace

    @property
    def name(self) -> str:
        return f"launchd ({self._domain.name})"

    @property
    def domain(self) -> str:
        return self._domain.name

    @property
    def note(self) -> str | None:
        return self._domain.note

    @property
    def definition(self) -> Path:
        return self._folder / f"{self._label}.plist"

    def view(self) -> JobView:
        if self._presence() is not Presence.LOADED:
            return JobView(loaded=False, pid=None, last_exit=None)
        listed = self._launchctl.list(self._label)
        if listed is None:
            return JobView(loaded=True, pid=None, last_exit=None)
        ended = None if listed.last_exit is None else ended_how(listed.last_exit)
        return JobView(loaded=True, pid=listed.pid, last_exit=ended)

    def load(self) -> None:
        # Harmless when enabled already; a disabled job cannot be loaded.
        self._launchctl.enable(self._target)
        self.unload()
        self._bootstrap()
        if self._presence() is not Presence.LOADED:
            raise ServiceFailed(f"launchd took the job, and then had no {self._target}")
        # Jobs have been seen loaded and never started; without -k a running one is left alone.
        self.start()

    def start(self) -> None:
        self._demand(self._launchctl.kickstart(self._target))

    def stop_process(self) -> None:
        outcome = self._launchctl.kill("SIGTERM", self._target)
        if outcome.code != Code.NO_PROCESS:
            self._demand(outcome)

    def unload(self) -> None:
        if self._presence() in (Presence.NOT_LOADED, Presence.NO_DOMAIN):
            return
        outcome = self._launchctl.bootout(self._target)
        if not bootout_is_under_way(outcome.code):
            raise self._failed(outcome)
        self._wait_until_gone()

    def remove(self) -> None:
        self.unload()
        try:
            self.definition.unlink(missing_ok=True)
        except OSError as error:
            raise ServiceFailed(f"cannot remove {self.definition}: {error.strerror}") from error

    def disable(self) -> None:
        self._demand(self._launchctl.disable(self._target))

    def _presence(self) -> Presence:
        return presence(self._launchctl.print(self._target).code)

    def _wait_until_gone(self) -> None:
        """``bootout`` returns before the job has ended; a bootstrap until then would fail."""
        limit = self._pace.now() + GONE_WITHIN
        while self._presence() not in (Presence.NOT_LOADED, Presence.NO_DOMAIN):
            if self._pace.now() >= limit:
                raise ServiceFailed(
                    f"{self._target} is still there {GONE_WITHIN:.0f} s after it was told to go; "
                    f"look at `launchctl print {self._target}`"
                )
            self._pace.sleep(POLL)

    def _bootstrap(self) -> None:
        tries = 0
        while True:
            outcome = self._launchctl.bootstrap(self._domain.name, str(self.definition))
            tries += 1
            loaded = not outcome.ok and self._presence() is Presence.LOADED
            step = after_bootstrap(outcome.code, tries, loaded=loaded)
            match step:
                case Done():
                    return
                case Again(delay):
                    log.info("bootstrap_tried_again", code=outcome.code, delay=delay)
                    self._pace.sleep(delay)
                    self.unload()
                    self._launchctl.enable(self._target)
                case GiveUp():
                    raise self._failed(outcome)
                case _:
                    assert_never(step)

    def _demand(self, outcome: Outcome) -> None:
        if not outcome.ok:
            raise self._failed(outcome)

    def _failed(self, outcome: Outcome) -> ServiceFailed:
        return ServiceFailed(
            f"{outcome}. {explain(outcome.code, self._domain.name)}", code=outcome.code
        )
