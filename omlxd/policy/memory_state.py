"""The state that the memory guard publishes for pool, schedulers and ``/status``."""

from dataclasses import dataclass

from omlxd.policy.ceiling import Ceilings, Limits
from omlxd.policy.pressure import Level, Pause
from omlxd.policy.readings import MemoryReading
from omlxd.policy.tiers import GuardPolicy
from omlxd.policy.usage import Usage


@dataclass(frozen=True, slots=True)
class MemoryState:
    """The memory as of one decision of the guard.

    Attributes:
        at: when the guard looked, by its clock.
        policy: the policy that was in force then.
        reading: the reading from which the ceilings were computed.
        limits: the limits that the schedulers get.
        pause: why new requests wait (in monitor mode: would wait); None if they do not.
        age: seconds after ``at`` at which usage was measured again. An unload may have ended since
            the decision, and an idle guard looks every 30 s only.
    """

    at: float
    policy: GuardPolicy
    reading: MemoryReading
    usage: Usage
    ceilings: Ceilings
    limits: Limits
    level: Level = Level.OK
    emergency: bool = False
    pause: Pause | None = None
    age: float = 0.0

    @property
    def paused(self) -> bool:
        """Admission of requests is paused by pressure."""
        return self.pause is not None

    @property
    def enforce(self) -> bool:
        """False in monitor mode: the guard only watches."""
        return self.policy.enforce

    @property
    def ceiling(self) -> int | None:
        return self.ceilings.ceiling
