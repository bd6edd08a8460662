"""What a load needs, whether it would fit, and how old the readings may be."""

from dataclasses import replace

import pytest

from omlxd.errors import InsufficientMemory, InvalidRequest, ModelNotFound, ModelTooLarge
from omlxd.model_settings.options import ModelSettings
from omlxd.policy.readings import MemoryReading
from omlxd.policy.tiers import Tier
from omlxd.pool.admission import Verdict, load_need, working_memory
from omlxd.pool.measured_sizes import MeasuredSizes
from omlxd.pool.options import PoolOptions
from omlxd.units import GiB
from tests.unit.pool.fakes import FakeMachine, House, MiB, a_model, ceilings, settle

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 1024,
    "vocab_size": 1000,
}


def a_llama(name: str = "m", *, size: int = 100 * MiB):  # type: ignore[no-untyped-def]
    return replace(a_model(name, size=size), config=LLAMA, element_bytes=2)


def test_the_headroom_of_a_load_is_that_of_a_first_prefill() -> None:
    need = load_need(a_llama(), MeasuredSizes())
    assert need.weights_bytes == 100 * MiB
    # Keys and values of 4 layers with 2 heads of 64 elements, 2 bytes each, 2048 tokens.
    kv = 4 * 2 * 2 * 64 * 2 * 2048
    beside = working_memory(a_llama(), 2048).footprint
    assert beside is not None
    assert beside.kv == kv
    assert need.headroom_bytes == beside.bytes > kv


def test_a_short_context_needs_less_headroom() -> None:
    short = replace(a_llama(), context_length=256)
    assert load_need(short, MeasuredSizes()).headroom_bytes < (
        load_need(a_llama(), MeasuredSizes()).headroom_bytes
    )


def test_an_unknown_shape_gets_a_share_and_says_why() -> None:
    model = a_model("m", size=1000)
    assert load_need(model, MeasuredSizes()).headroom_bytes == 50
    assert "not known" in (working_memory(model, 10).unknown or "")


async def test_what_fits_now_after_evictions_and_never() -> None:
    house = House(
        a_llama("small", size=5 * MiB),
        a_llama("large", size=100 * MiB),
        a_llama("medium", size=90 * MiB),
        a_llama("huge", size=500 * MiB),
        machine=FakeMachine(160 * MiB),
    )
    use = house.use("large")
    await house.time.pass_by(6)

    def verdict(name: str, context: int = 128) -> Verdict:
        fit = house.pool.fit(name, context=context, concurrency=1)
        return fit.tiers[Tier.BALANCED].verdict

    assert verdict("small") is Verdict.NOW
    assert verdict("huge") is Verdict.NEVER
    assert verdict("large") is Verdict.NOW
    medium = house.pool.fit("medium", context=128, concurrency=1).tiers[Tier.BALANCED]
    assert (medium.verdict, medium.evict) == (Verdict.AFTER_EVICTIONS, ("large",))
    await use.done()


async def test_pinned_models_and_other_programs_are_in_the_way_now() -> None:
    house = House(
        a_llama("pinned"),
        a_llama("other"),
        machine=FakeMachine(200 * MiB),
        options=PoolOptions(settings={"pinned": ModelSettings(pinned=True)}),
    )
    await settle()
    fit = house.pool.fit("other", context=128, concurrency=1).tiers[Tier.BALANCED]
    assert fit.verdict is Verdict.NOT_NOW
    assert "pinned" in (fit.remedy or "")


async def test_a_short_context_is_given_no_better_verdict_than_its_load() -> None:
    """A load needs room for a first prompt, even if all prompts are shorter."""
    model = a_llama("m")
    alone = load_need(model, MeasuredSizes())
    work = working_memory(model, 100).footprint
    assert work is not None
    assert work.bytes < alone.headroom_bytes
    between = alone.weights_bytes + (work.bytes + alone.headroom_bytes) // 2
    house = House(model, a_model("odd"), machine=FakeMachine(int(between / 0.95)))
    fit = house.pool.fit("m", context=100, concurrency=1)
    assert fit.tiers[Tier.BALANCED].verdict is Verdict.NEVER
    assert (fit.kv_bytes, fit.needed_bytes) == (work.kv, alone.bytes)
    with pytest.raises(ModelTooLarge):
        await house.pool.load("m")


async def test_what_is_in_memory_needs_no_room_for_a_load() -> None:
    model = a_llama("m")
    machine = FakeMachine(160 * MiB)
    house = House(model, machine=machine)
    await house.pool.load("m")
    work = working_memory(model, 100).footprint
    assert work is not None
    machine.ceilings = ceilings(int((100 * MiB + 2 * work.bytes) / 0.9))
    fit = house.pool.fit("m", context=100, concurrency=1)
    assert fit.tiers[Tier.BALANCED].verdict is Verdict.NOW


async def test_a_loaded_models_weights_are_not_needed_twice() -> None:
    house = House(a_llama("m"), machine=FakeMachine(160 * MiB))
    await house.pool.load("m")
    fit = house.pool.fit("m", context=128, concurrency=1)
    assert (fit.loaded, fit.weights_measured, fit.weights_bytes) == (True, True, 100 * MiB)
    assert fit.tiers[Tier.BALANCED].verdict is Verdict.NOW


async def test_a_loaded_model_can_be_asked_for_too_much_for_ever() -> None:
    house = House(a_llama("m"), machine=FakeMachine(160 * MiB))
    await house.pool.load("m")
    fit = house.pool.fit("m", context=4096, concurrency=10)
    assert fit.kv_bytes == 80 * MiB  # below the ceiling, unlike weights and KV together
    assert fit.tiers[Tier.BALANCED].verdict is Verdict.NEVER


async def test_more_requests_and_more_context_need_more() -> None:
    house = House(a_llama("m"), machine=FakeMachine(160 * MiB))
    one = house.pool.fit("m", context=1024, concurrency=1)
    longer = house.pool.fit("m", context=4096, concurrency=1)
    more = house.pool.fit("m", context=1024, concurrency=4)
    assert one.kv_bytes is not None
    assert longer.kv_bytes == more.kv_bytes == 4 * one.kv_bytes
    assert longer.prefill_bytes is not None
    assert one.prefill_bytes is not None
    assert longer.prefill_bytes > one.prefill_bytes


async def test_every_tier_is_previewed_from_one_reading() -> None:
    machine = FakeMachine(30 * GiB)
    machine.reading = MemoryReading(
        taken_at=1000.0, total=32 * GiB, footprint=GiB, free=10 * GiB, inactive=2 * GiB,
        active=8 * GiB, wired=2 * GiB, external=GiB, compressor=0,
    )  # fmt: skip
    house = House(a_llama("m"), machine=machine)
    tiers = house.pool.fit("m", context=128, concurrency=1).tiers
    assert list(tiers) == list(Tier)
    assert tiers[Tier.BALANCED].ceiling_bytes == 30 * GiB
    assert tiers[Tier.SAFE].ceiling_bytes < tiers[Tier.AGGRESSIVE].ceiling_bytes
    machine.age = 30.0
    idle = house.pool.fit("m", context=128, concurrency=1).tiers
    assert idle == tiers, "the age of an idle guard's reading must not empty the preview"


async def test_without_a_guard_there_are_sizes_and_no_verdict() -> None:
    fit = House(a_llama("m")).pool.fit("m", context=128, concurrency=1)
    assert fit.kv_bytes
    assert fit.tiers == {}
    assert fit.tier is None


async def test_a_context_beyond_the_models_own_is_refused() -> None:
    house = House(a_llama("m"))
    with pytest.raises(InvalidRequest, match="4096"):
        house.pool.fit("m", context=4097, concurrency=1)
    with pytest.raises(ModelNotFound):
        house.pool.fit("n", context=1, concurrency=1)


A_SIZE = 60 * MiB


def house_whose_guard_is(age: float, others: int = 0) -> tuple[House, FakeMachine]:
    machine = FakeMachine(100 * MiB)
    machine.age, machine.others = age, others
    return House(a_model("a", size=A_SIZE), machine=machine), machine


async def test_a_load_waits_for_a_look_when_the_last_one_is_old() -> None:
    house, machine = house_whose_guard_is(age=30.0, others=80 * MiB)
    use = house.use("a")
    await settle()
    assert house.woken == 1
    assert house.status("a").detail == "memory is being looked at"
    machine.age, machine.others = 0.0, 0
    house.pool.check_idle()
    await settle()
    assert use.lease is not None
    await use.done()


async def test_memory_that_has_gone_since_the_last_look_refuses_the_load() -> None:
    house, machine = house_whose_guard_is(age=30.0)
    use = house.use("a")
    await settle()
    machine.age, machine.others = 0.0, 80 * MiB
    house.pool.check_idle()
    await settle()
    assert isinstance(use.error, InsufficientMemory)
    assert house.engine.tickets == []


async def test_a_guard_that_cannot_look_holds_no_load_up_for_long() -> None:
    house, _ = house_whose_guard_is(age=30.0)
    use = house.use("a")
    await house.time.pass_by(2.0)
    assert use.lease is None
    await house.time.pass_by(2.0)
    assert use.lease is not None
    await use.done()
