"""What the enforcer is given: eyes, hands, and the numbers of the models."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from omlxd.policy.actions import Action, ActionOutcome
from omlxd.policy.ceiling import HotCache, Limits
from omlxd.policy.decision import Decision
from omlxd.policy.readings import AllocatorSample, MemoryReading, ModelView


def _no_cache() -> HotCache | None:
    return None


def _nothing() -> int:
    return 0


def _no_images() -> int | None:
    return 0


@dataclass(frozen=True, slots=True)
class Activity:
    """What sets the pace of looking."""

    loading: bool
    active: bool | None
    """Any engine has work; None when one cannot say."""
    loaded: bool


@dataclass(frozen=True, slots=True)
class GuardPorts:
    """Attributes:
    clock: seconds that go on while the machine sleeps.
    read: one reading at the given time; may block, so it is called in a thread.
    sample: the allocator's numbers, fresh when the device thread is idle; None before it is up.
    apply: carry one action of a decision out; what became of it.
    after_tick: called after each tick (idle timeouts).
    reclaimed: bytes that the allocator's pool gave back when asked to, since the start.
    hot_cache, image_cache_bytes: the caches that can be shrunk; none by default.
    """

    clock: Callable[[], float]
    read: Callable[[float], MemoryReading]
    sample: Callable[[], Awaitable[AllocatorSample | None]]
    models: Callable[[], tuple[ModelView, ...]]
    activity: Callable[[], Activity]
    apply: Callable[[Action, Decision], Awaitable[ActionOutcome]]
    set_limits: Callable[[Limits], None]
    after_tick: Callable[[], None]
    reclaimed: Callable[[], int] = _nothing
    hot_cache: Callable[[], HotCache | None] = _no_cache
    image_cache_bytes: Callable[[], int | None] = _no_images
