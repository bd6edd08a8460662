from typing import Any

import pytest

from omlxd.enforcer.executor import ActionExecutor, aborted, load_aborted, waited
from omlxd.errors import OmlxdError
from omlxd.memory_text import pressure
from omlxd.policy.actions import (
    AbortLoads,
    AbortRequests,
    Action,
    ActionOutcome,
    DropImageCache,
    EvictModel,
    IdleReclaim,
    MarkPendingUnload,
    ReclaimBufferCache,
    ReturnFreePages,
    ShrinkRamCache,
    Suspend,
    WalkStoreCap,
)
from omlxd.policy.decision import Decision, GuardState, Snapshot
from omlxd.policy.pressure import Level, Pause
from omlxd.policy.readings import AllocatorSample, MemoryReading, OsPressure
from omlxd.policy.relief import decide
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.units import GiB


def decision(
    usage: int,
    policy: GuardPolicy,
    *,
    os_pressure: OsPressure | None = None,
    state: GuardState | None = None,
) -> Decision:
    reading = MemoryReading(
        1.0,
        64 * GiB,
        footprint=usage,
        free=40 * GiB,
        inactive=0,
        active=0,
        external=0,
        os_pressure=os_pressure,
    )
    sample = AllocatorSample(1.0, usage, 0, usage)
    snapshot = Snapshot(1.0, reading, sample, image_cache_bytes=0)
    return decide(state or GuardState(), snapshot, policy)


CUSTOM = GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=10 * GiB)

HARD = decision(int(9.8 * GiB), CUSTOM)


class Owners:
    def __init__(self) -> None:
        self.up = True
        self.open = 2
        self.aborted: list[tuple[str | None, OmlxdError]] = []
        self.reclaims: list[bool] = []
        self.models_asked: list[Action] = []
        self.load_error: OmlxdError | None = None

    def abort(self, model_id: str | None, error: OmlxdError) -> int:
        self.aborted.append((model_id, error))
        return self.open

    def reclaim(self, *, when_idle: bool) -> None:
        self.reclaims.append(when_idle)

    async def models(self, action: Action, error: OmlxdError) -> ActionOutcome:
        self.models_asked.append(action)
        self.load_error = error
        return ActionOutcome(action, freed=7)

    async def release(self) -> int | None:
        return 5

    def executor(self) -> ActionExecutor:
        engine: Any = self
        return ActionExecutor(engine, lambda: self.up, self.models, self.release)


@pytest.fixture
def owners() -> Owners:
    return Owners()


async def test_requests_are_ended_with_an_error_that_says_why(owners: Owners) -> None:
    assert (await owners.executor().apply(AbortRequests("a"), HARD)).accepted
    ((model, error),) = owners.aborted
    assert model == "a"
    assert error.code == "memory_pressure_aborted"
    assert error.details["mark"] == "hard"


async def test_an_abort_that_meets_nobody_is_refused(owners: Owners) -> None:
    owners.open = 0
    assert not (await owners.executor().apply(AbortRequests(None), HARD)).accepted


async def test_models_are_the_pools_own(owners: Owners) -> None:
    for action in (EvictModel("a", 1), MarkPendingUnload("a"), AbortLoads(("a",))):
        assert (await owners.executor().apply(action, HARD)).freed == 7
    assert len(owners.models_asked) == 3
    assert owners.load_error is not None
    assert owners.load_error.details["binding"] == "custom"


async def test_a_reclaim_is_taken_once_the_runtime_is_up(owners: Owners) -> None:
    assert (await owners.executor().apply(ReclaimBufferCache(), HARD)).accepted
    assert (await owners.executor().apply(IdleReclaim(), HARD)).accepted
    assert owners.reclaims == [False, True]
    owners.up = False
    assert not (await owners.executor().apply(ReclaimBufferCache(), HARD)).accepted
    assert owners.reclaims == [False, True]


async def test_free_pages_are_measured(owners: Owners) -> None:
    assert (await owners.executor().apply(ReturnFreePages(), HARD)).freed == 5


async def test_what_has_no_owner_yet_is_refused(owners: Owners) -> None:
    for action in (DropImageCache(), ShrinkRamCache(1), WalkStoreCap(1), Suspend(("r",))):
        outcome = await owners.executor().apply(action, HARD)
        assert (outcome.accepted, outcome.freed) == (False, None)


def test_an_aborted_request_is_told_usage_limit_mark_term_and_remedy() -> None:
    error = aborted(decision(int(9.8 * GiB), CUSTOM).memory)
    assert error.code == "memory_pressure_aborted"
    assert error.retry_after == 10.0
    assert error.details == {
        "usage_bytes": int(9.8 * GiB),
        "estimate_bytes": None,
        "limit_bytes": int(9.7 * GiB),
        "mark": "hard",
        "ceiling_bytes": 10 * GiB,
        "binding": "custom",
        "remedy": "Raise the custom ceiling.",
    }
    for part in ("9.8GB", "9.7GB", "hard mark", "custom", "Raise the custom ceiling."):
        assert part in error.message


def test_in_an_emergency_the_mark_is_the_ceiling_itself() -> None:
    facts = pressure(decision(13 * GiB, CUSTOM).memory)
    assert (facts["mark"], facts["limit_bytes"]) == ("ceiling", 10 * GiB)


def test_a_request_that_waited_is_told_of_the_soft_mark() -> None:
    error = waited(decision(int(9.2 * GiB), CUSTOM).memory, 300.4)
    assert error.code == "memory_pressure"
    assert error.details["mark"] == "soft"
    assert error.details["waited_seconds"] == 300.4
    assert "300 s" in error.message


def test_below_the_soft_mark_a_request_waits_for_the_resume_mark() -> None:
    """Each names ... the mark that tripped: never a limit that usage is below of."""
    paused = GuardState(Level.SOFT, pause=Pause.LEVEL)
    error = waited(decision(int(8.9 * GiB), CUSTOM, state=paused).memory, 300)
    assert (error.details["mark"], error.details["limit_bytes"]) == ("resume", 9 * GiB - GiB // 5)
    assert error.details["usage_bytes"] >= error.details["limit_bytes"]
    assert "8.9GB is in use, and new requests start below 8.8GB" in error.message
    assert error.message.endswith("set by the custom limit). Raise the custom ceiling.")


def test_a_system_short_of_memory_is_named_with_its_own_remedy() -> None:
    """Each names ... the mark that tripped, the binding term and its remedy"""
    critical = decision(4 * GiB, GuardPolicy(), os_pressure=OsPressure.CRITICAL)
    error = waited(critical.memory, 300)
    assert (error.details["mark"], error.details["binding"]) == ("os_pressure", "os_pressure")
    assert (error.details["limit_bytes"], error.details["usage_bytes"]) == (None, 4 * GiB)
    assert error.details["remedy"] == "Close other apps or unload models."
    assert "system as a whole is critically short of memory" in error.message
    assert "tier" not in error.message


def test_with_usage_over_a_mark_too_the_mark_is_told() -> None:
    both = decision(int(9.2 * GiB), CUSTOM, os_pressure=OsPressure.CRITICAL)
    assert pressure(both.memory)["mark"] == "soft"


def test_the_remedy_follows_the_binding_term() -> None:
    error = load_aborted(decision(60 * GiB, GuardPolicy(tier=Tier.SAFE)).memory)
    assert error.details["binding"] == "static"
    assert error.details["remedy"] in error.message
