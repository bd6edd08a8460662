"""What the memory guard publishes: one frozen state that pool, schedulers and ``/status`` read."""

from dataclasses import dataclass

from omlxd.policy.ceiling import Ceilings
from omlxd.policy.readings import MemoryReading
from omlxd.policy.usage import Usage


@dataclass(frozen=True, slots=True)
class MemoryState:
    """What the admission of a load needs to know.

    Attributes:
        usage: measured now, not at the last tick: an unload may have just ended.
        paused: admission of requests is paused by pressure.
        enforce: False when the guard only watches.
        reading: what the ceilings were made of; without it there is no preview of other tiers.
        age: seconds since the guard looked; an idle one looks every 30 s only.
    """

    usage: Usage
    ceilings: Ceilings
    paused: bool = False
    enforce: bool = True
    reading: MemoryReading | None = None
    age: float = 0.0
