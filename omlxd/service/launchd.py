"""Our launchd job: chooses its domain, then loads, stops and observes it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import assert_never

import structlog

from omlxd.errors import ServiceFailed
from omlxd.service.job import EXIT_TIMEOUT
from omlxd.service.launchctl import (
    BootstrapFailed,
    Bootstrapped,
    CallResult,
    Code,
    Launchctl,
    LoadState,
    RetryBootstrap,
    after_bootstrap,
    bootout_is_under_way,
    describe_wait_status,
    explain,
)
from omlxd.service.supervisor import Clock, JobView

log = structlog.get_logger(__name__)

GONE_WITHIN = EXIT_TIMEOUT + 5.0
POLL = 0.25

HEADLESS = (
    "There is no graphical session of this account, so the job was put in its background domain: "
    "it runs while the account has any session (SSH included), ends with the last one, and does "
    "not start at boot. For a Mac without a login use: "
    "sudo omlxd service install --system --user NAME"
)


class Kind(Enum):
    GUI = "gui"
    USER = "user"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Domain:
    """``uid`` is None for the system domain."""

    kind: Kind
    uid: int | None = None

    @property
    def name(self) -> str:
        return self.kind.value if self.uid is None else f"{self.kind.value}/{self.uid}"

    @property
    def note(self) -> str | None:
        """A note for the user about this domain."""
        return HEADLESS if self.kind is Kind.USER else None

    def target(self, label: str) -> str:
        return f"{self.name}/{label}"


SYSTEM = Domain(Kind.SYSTEM)


def user_domains(uid: int) -> tuple[Domain, Domain]:
    """The domains that may hold an agent of ``uid``, the better one first."""
    return Domain(Kind.GUI, uid), Domain(Kind.USER, uid)


def parse_domain(name: str) -> Domain | None:
    """The domain with this ``name``; None for anything else."""
    kind, _, uid = name.partition("/")
    if name == Kind.SYSTEM.value:
        return SYSTEM
    if kind in (Kind.GUI.value, Kind.USER.value) and uid.isdigit():
        return Domain(Kind(kind), int(uid))
    return None


def check_rights(uid: int, *, system: bool) -> None:
    """Raises ServiceFailed, with the right command, when this user lacks the rights."""
    if system and uid != 0:
        raise ServiceFailed(
            "a system daemon needs administrator rights: run the same command with sudo"
        )
    if not system and uid == 0:
        raise ServiceFailed(
            "run as root, the agent would be root's own; run without sudo for an agent of your "
            "account, or with --system --user NAME for a daemon that starts at boot"
        )


def choose_domain(uid: int, load_state: Callable[[str], LoadState]) -> Domain:
    """The domain for an agent of ``uid``.

    ``load_state`` asks launchd about a domain. The background domain is chosen only when the
    graphical one is surely absent (112, 125).
    Raises ServiceFailed when both are absent.
    """
    gui, user = user_domains(uid)
    if load_state(gui.name) is not LoadState.NO_DOMAIN:
        return gui
    if load_state(user.name) is not LoadState.NO_DOMAIN:
        return user
    raise ServiceFailed(
        f"launchd has neither {gui.name} nor {user.name}: this account has no session. "
        "Log in, or run: sudo omlxd service install --system --user NAME"
    )


class LaunchdJob:
    """A ``Supervisor``. The caller writes the plist."""

    def __init__(
        self, launchctl: Launchctl, domain: Domain, label: str, folder: Path, clock: Clock
    ) -> None:
        """``folder``: where the plists of this domain are."""
        self._launchctl = launchctl
        self._domain = domain
        self._label = label
        self._target = domain.target(label)
        self._folder = folder
        self._clock = clock

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
        if self._load_state() is not LoadState.LOADED:
            return JobView(loaded=False, pid=None, last_exit=None)
        listed = self._launchctl.list(self._label)
        if listed is None:
            return JobView(loaded=True, pid=None, last_exit=None)
        ended = None if listed.last_exit is None else describe_wait_status(listed.last_exit)
        return JobView(loaded=True, pid=listed.pid, last_exit=ended)

    def load(self) -> None:
        # A disabled job cannot be loaded. Enabling an enabled job does nothing.
        self._launchctl.enable(self._target)
        self.unload()
        self._bootstrap()
        if self._load_state() is not LoadState.LOADED:
            raise ServiceFailed(f"launchd took the job, and then had no {self._target}")
        # launchd sometimes loads a job and never starts it. A running job is left alone.
        self.start()

    def start(self) -> None:
        self._require(self._launchctl.kickstart(self._target))

    def stop_process(self) -> None:
        result = self._launchctl.kill("SIGTERM", self._target)
        if result.code != Code.NO_PROCESS:
            self._require(result)

    def unload(self) -> None:
        if self._is_gone():
            return
        result = self._launchctl.bootout(self._target)
        if not bootout_is_under_way(result.code):
            raise self._failed(result)
        self._wait_until_gone()

    def remove(self) -> None:
        self.unload()
        try:
            self.definition.unlink(missing_ok=True)
        except OSError as error:
            raise ServiceFailed(f"cannot remove {self.definition}: {error.strerror}") from error

    def disable(self) -> None:
        self._require(self._launchctl.disable(self._target))

    def _load_state(self) -> LoadState:
        return self._launchctl.load_state(self._target)

    def _is_gone(self) -> bool:
        return self._load_state() in (LoadState.NOT_LOADED, LoadState.NO_DOMAIN)

    def _wait_until_gone(self) -> None:
        """``bootout`` returns before the job has ended; a bootstrap before that would fail."""
        limit = self._clock.now() + GONE_WITHIN
        while not self._is_gone():
            if self._clock.now() >= limit:
                raise ServiceFailed(
                    f"{self._target} is still there {GONE_WITHIN:.0f} s after it was told to go; "
                    f"look at `launchctl print {self._target}`"
                )
            self._clock.sleep(POLL)

    def _bootstrap(self) -> None:
        tries = 0
        while True:
            result = self._launchctl.bootstrap(self._domain.name, str(self.definition))
            tries += 1
            loaded = not result.ok and self._load_state() is LoadState.LOADED
            step = after_bootstrap(result.code, tries, loaded=loaded)
            match step:
                case Bootstrapped():
                    return
                case RetryBootstrap(delay):
                    log.info("bootstrap_tried_again", code=result.code, delay=delay)
                    self._clock.sleep(delay)
                    self.unload()
                    self._launchctl.enable(self._target)
                case BootstrapFailed():
                    raise self._failed(result)
                case _:
                    assert_never(step)

    def _require(self, result: CallResult) -> None:
        if not result.ok:
            raise self._failed(result)

    def _failed(self, result: CallResult) -> ServiceFailed:
        return ServiceFailed(
            f"{result}. {explain(result.code, self._domain.name)}", code=result.code
        )
