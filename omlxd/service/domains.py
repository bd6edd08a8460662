"""Which launchd domain the job belongs in, and what that means for the person."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from omlxd.errors import ServiceFailed
from omlxd.service.steps import Presence


class Kind(Enum):
    GUI = "gui"
    USER = "user"
    SYSTEM = "system"


HEADLESS = (
    "There is no graphical session of this account, so the job was put in its background domain: "
    "it runs while the account has any session (SSH included), ends with the last one, and does "
    "not start at boot. For a Mac without a login use: "
    "sudo omlxd service install --system --user NAME"
)


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
        """What the person should know about this choice."""
        return HEADLESS if self.kind is Kind.USER else None

    def target(self, label: str) -> str:
        return f"{self.name}/{label}"


SYSTEM = Domain(Kind.SYSTEM)


def of_user(uid: int) -> tuple[Domain, Domain]:
    """The domains an agent of ``uid`` may be in, the better one first."""
    return Domain(Kind.GUI, uid), Domain(Kind.USER, uid)


def parse(name: str) -> Domain | None:
    """The domain with this ``name``; None for anything else."""
    kind, _, uid = name.partition("/")
    if name == Kind.SYSTEM.value:
        return SYSTEM
    if kind in (Kind.GUI.value, Kind.USER.value) and uid.isdigit():
        return Domain(Kind(kind), int(uid))
    return None


def check_rights(uid: int, *, system: bool) -> None:
    """Raises ServiceFailed when this user cannot do what is asked, with the right command."""
    if system and uid != 0:
        raise ServiceFailed(
            "a system daemon needs administrator rights: run the same command with sudo"
        )
    if not system and uid == 0:
        raise ServiceFailed(
            "run as root, the agent would be root's own; run without sudo for an agent of your "
            "account, or with --system --user NAME for a daemon that starts at boot"
        )


def choose(uid: int, look: Callable[[str], Presence]) -> Domain:
    """The domain for an agent of ``uid``; ``look`` asks ``launchctl print`` about a domain.

    Only a domain that certainly is not there (112, 125) makes it the background one.
    Raises ServiceFailed when neither is there.
    """
    gui, user = of_user(uid)
    if look(gui.name) is not Presence.NO_DOMAIN:
        return gui
    if look(user.name) is not Presence.NO_DOMAIN:
        return user
    raise ServiceFailed(
        f"launchd has neither {gui.name} nor {user.name}: this account has no session. "
        "Log in, or run: sudo omlxd service install --system --user NAME"
    )
