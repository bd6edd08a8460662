from dataclasses import replace

import pytest

from omlxd.enforcer import explain
from omlxd.policy.decision import Decision
from omlxd.policy.look import GuardState, Snapshot
from omlxd.policy.pressure import Level
from omlxd.policy.readings import AllocatorSample, MemoryReading
from omlxd.policy.relief import decide
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.units import GiB


def decision(usage: int, policy: GuardPolicy) -> Decision:
    reading = MemoryReading(
        1.0, 64 * GiB, footprint=usage, free=40 * GiB, inactive=0, active=0, external=0
    )
    sample = AllocatorSample(1.0, usage, 0, usage)
    snapshot = Snapshot(1.0, reading, sample, image_cache_bytes=0)
    return decide(GuardState(), snapshot, policy)


CUSTOM = GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=10 * GiB)


def test_an_aborted_request_is_told_usage_limit_mark_term_and_remedy() -> None:
    error = explain.aborted(decision(int(9.8 * GiB), CUSTOM))
    assert error.code == "memory_pressure_aborted"
    assert error.retry_after == 10.0
    assert error.facts == {
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
    facts = explain.facts(decision(13 * GiB, CUSTOM))
    assert (facts["mark"], facts["limit_bytes"]) == ("ceiling", 10 * GiB)


@pytest.mark.parametrize("level", [Level.OK, Level.SOFT])
def test_a_request_that_waited_is_told_of_the_soft_mark(level: Level) -> None:
    error = explain.waited(replace(decision(int(9.2 * GiB), CUSTOM), level=level), 300.4)
    assert error.code == "memory_pressure"
    assert error.facts["mark"] == "soft"
    assert error.facts["waited_seconds"] == 300.4
    assert "300 s" in error.message


def test_the_remedy_follows_the_binding_term() -> None:
    error = explain.load_aborted(decision(60 * GiB, GuardPolicy(tier=Tier.SAFE)))
    assert error.facts["binding"] == "static"
    assert error.facts["remedy"] in error.message
