from omlxd.enforcer import explain
from omlxd.policy.decision import Decision
from omlxd.policy.observation import GuardState, Snapshot
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


def test_an_aborted_request_is_told_usage_limit_mark_term_and_remedy() -> None:
    error = explain.aborted(decision(int(9.8 * GiB), CUSTOM))
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
    facts = explain.facts(decision(13 * GiB, CUSTOM))
    assert (facts["mark"], facts["limit_bytes"]) == ("ceiling", 10 * GiB)


def test_a_request_that_waited_is_told_of_the_soft_mark() -> None:
    error = explain.waited(decision(int(9.2 * GiB), CUSTOM), 300.4)
    assert error.code == "memory_pressure"
    assert error.details["mark"] == "soft"
    assert error.details["waited_seconds"] == 300.4
    assert "300 s" in error.message


def test_below_the_soft_mark_a_request_waits_for_the_resume_mark() -> None:
    """Each names ... the mark that tripped: never a limit that usage is below of."""
    paused = GuardState(Level.SOFT, pause=Pause.LEVEL)
    error = explain.waited(decision(int(8.9 * GiB), CUSTOM, state=paused), 300)
    assert (error.details["mark"], error.details["limit_bytes"]) == ("resume", 9 * GiB - GiB // 5)
    assert error.details["usage_bytes"] >= error.details["limit_bytes"]
    assert "8.9GB is in use, and new requests start below 8.8GB" in error.message
    assert error.message.endswith("set by the custom limit). Raise the custom ceiling.")


def test_a_system_short_of_memory_is_named_with_its_own_remedy() -> None:
    """Each names ... the mark that tripped, the binding term and its remedy"""
    critical = decision(4 * GiB, GuardPolicy(), os_pressure=OsPressure.CRITICAL)
    error = explain.waited(critical, 300)
    assert (error.details["mark"], error.details["binding"]) == ("os_pressure", "os_pressure")
    assert (error.details["limit_bytes"], error.details["usage_bytes"]) == (None, 4 * GiB)
    assert error.details["remedy"] == "Close other apps or unload models."
    assert "system as a whole is critically short of memory" in error.message
    assert "tier" not in error.message


def test_with_usage_over_a_mark_too_the_mark_is_told() -> None:
    both = decision(int(9.2 * GiB), CUSTOM, os_pressure=OsPressure.CRITICAL)
    assert explain.facts(both)["mark"] == "soft"


def test_the_remedy_follows_the_binding_term() -> None:
    error = explain.load_aborted(decision(60 * GiB, GuardPolicy(tier=Tier.SAFE)))
    assert error.details["binding"] == "static"
    assert error.details["remedy"] in error.message
