import pytest

from omlxd.enforcer.executor import ActionExecutor
from omlxd.errors import OmlxdError
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
from omlxd.units import GiB
from tests.unit.enforcer.test_explain import CUSTOM, decision

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
        return ActionExecutor(self, lambda: self.up, self.models, self.release)


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
