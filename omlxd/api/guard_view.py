"""The memory guard as JSON: plain dictionaries; ``null`` is unknown, zero is zero."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from omlxd.enforcer.enforcer import Enforcer
from omlxd.enforcer.record import Entry, notable_actions
from omlxd.enforcer.settings import FIELDS, KEYS, PolicyInForce
from omlxd.memory_text import binding_name, in_words, pressure, remedy
from omlxd.policy.actions import (
    AbortLoads,
    AbortRequests,
    Action,
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
from omlxd.policy.ceiling import Ceilings, ceilings_by_tier, file_cache, lowest, pushed_apps
from omlxd.policy.decision import Decision
from omlxd.policy.eviction import Eviction
from omlxd.policy.memory_state import MemoryState
from omlxd.policy.readings import MemoryReading, OsPressure
from omlxd.policy.tiers import GuardPolicy, Tier, clamps
from omlxd.policy.usage import Usage, age, recent
from omlxd.units import GiB, format_bytes

RECENT: Final = 20
"""Decisions in one answer. The event stream has all kept decisions."""

ACTION_NAMES: Final[Mapping[type[Action], str]] = {
    DropImageCache: "drop_image_cache",
    ReclaimBufferCache: "reclaim_pool",
    ShrinkRamCache: "shrink_ram_cache",
    ReturnFreePages: "return_free_pages",
    EvictModel: "unload",
    Suspend: "suspend",
    AbortRequests: "abort_requests",
    MarkPendingUnload: "mark_pending_unload",
    AbortLoads: "abort_loads",
    IdleReclaim: "idle_reclaim",
    WalkStoreCap: "walk_store_cap",
}
"""The name of each action for clients. It stays the same when a class is renamed."""

SIZES: Final = (
    *("ceiling", "static_ceiling", "dynamic_ceiling", "metal_cap", "metal_cap_raw"),
    *("reserve", "hot_cache_reserved", "scheduler_ceiling", "scheduler_abort_limit"),
    *("soft", "hard", "current"),
)
"""Sizes in ``/status``: ``<name>_bytes``, and all but those of Metal as ``<name>_formatted``."""

_NUMBERS: Final = tuple(
    f.name
    for f in fields(MemoryReading)
    if f.name not in ("taken_at", "os_pressure", "sources", "degraded")
)


def guard_body(guard: Enforcer) -> dict[str, Any]:
    """The answer of GET and PUT ``/v1/memory-guard``."""
    in_force, memory, report = guard.settings.in_force, guard.published, guard.report
    policy = in_force.policy
    return {
        "enabled": policy.enabled,
        "running": guard.running,
        "monitor": not policy.enforce,
        "policy": policy_body(in_force),
        "dormant": dict(in_force.dormant),
        **_decision_body(None if guard.latest is None else guard.latest.decision),
        "ceiling": ceiling_body(memory),
        "clamps": [] if memory is None else _clamps(policy, memory.ceilings),
        "preview": None if memory is None else preview_body(memory.reading),
        "readings": readings_body(memory, guard.now),
        "decisions": [entry_body(kept) for kept in guard.record.entries[-RECENT:]],
        "tick": {
            "milliseconds": None if report is None else round(report.took * 1000, 3),
            "age_seconds": None if report is None else _rounded(guard.now - report.at),
            "looks": None if report is None else report.looks,
            "failed": None if report is None else report.failed,
            "failures": guard.failures,
        },
        "poll_interval_seconds": guard.interval,
    }


def status_keys(guard: Enforcer) -> dict[str, Any]:
    """What the guard adds to ``/status``: the flat keys that clients know, and three objects."""
    memory, policy = guard.published, guard.settings.in_force.policy
    return {
        **flat_status(memory, policy, running=guard.running, interval=guard.interval),
        "ceiling": ceiling_body(memory),
        "readings": readings_body(memory, guard.now),
        # Neither tier of the prefix cache exists yet: null, which is not the same as empty.
        "cache": {"ram": None, "ssd": None},
    }


def flat_status(
    memory: MemoryState | None, policy: GuardPolicy, *, running: bool, interval: float
) -> dict[str, Any]:
    """The keys of oMLX's ``get_status()``, as its clients read them: always numbers or texts.

    Only here, zero means off or unknown.
    """
    sizes = dict.fromkeys(SIZES, 0) if memory is None else _sizes(memory)
    used, ceiling = sizes["current"], sizes["ceiling"]
    return {
        "enabled": policy.enabled and running and memory is not None,
        "memory_guard_tier": policy.tier.value,
        "memory_guard_custom_ceiling_bytes": policy.custom_ceiling_bytes or 0,
        "other_app_reclaim_ratio": policy.constants.reclaim_ratio,
        "soft_threshold": policy.soft,
        "hard_threshold": policy.hard,
        "pressure_level": "ok" if memory is None else memory.level.label,
        "utilization": used / ceiling if ceiling else 0.0,
        "poll_interval_seconds": interval,
        **{f"{name}_bytes": sizes[name] for name in SIZES},
        **{
            f"{name}_formatted": format_bytes(sizes[name])
            for name in SIZES
            if not name.startswith("metal_cap")
        },
    }


def _sizes(memory: MemoryState) -> dict[str, int]:
    bounds = memory.ceilings
    sizes = (
        *(bounds.ceiling, bounds.static, bounds.dynamic, bounds.metal, bounds.device_cap),
        *(bounds.reserve, bounds.hot_cache_reserved, bounds.scheduler, bounds.scheduler_abort),
        *(bounds.soft, bounds.hard, memory.usage.bytes),
    )
    return {name: size or 0 for name, size in zip(SIZES, sizes, strict=True)}


def policy_body(in_force: PolicyInForce) -> dict[str, Any]:
    """For each key that may be set: the value in force, the value that was set, and where."""
    policy = in_force.policy
    as_set = {key: _as_set(key, getattr(policy, field)) for key, field in FIELDS.items()}
    effective = {**as_set, "soft_threshold": policy.soft, "hard_threshold": policy.hard}
    return {
        key: {"value": effective[key], "set": value, "origin": in_force.origins[key].value}
        for key, value in as_set.items()
    }


def ceiling_body(memory: MemoryState | None) -> dict[str, Any]:
    """The ceiling, its terms, the binding term, and every bound that follows; whether it is
    enforced, and whether and why new requests wait (or would wait, when it is not enforced)."""
    if memory is None:
        keys = (
            *("bytes", "binding", "remedy", "enforced", "admission_paused", "pause_cause"),
            *("pause_reason", "terms", "bounds"),
        )
        return dict.fromkeys(keys)
    ceilings = memory.ceilings
    off = ceilings.ceiling is None
    return {
        "bytes": ceilings.ceiling,
        "binding": None if off else binding_name(ceilings, ceilings.binding),
        "remedy": None if off else remedy(ceilings, ceilings.binding),
        "enforced": memory.enforce and not off,
        **_pause(memory),
        "pause_reason": in_words(pressure(memory)) if memory.paused else None,
        "terms": {
            "static": ceilings.static,
            "dynamic": ceilings.dynamic,
            "metal_cap": ceilings.metal,
        },
        "bounds": {
            "soft": ceilings.soft,
            "hard": ceilings.hard,
            "admission": ceilings.admission,
            "admission_soft": ceilings.admission_soft,
            "residency": ceilings.residency,
            "abort_limit": ceilings.abort_limit,
            "scheduler": ceilings.scheduler,
            "scheduler_abort_limit": ceilings.scheduler_abort,
            "hot_cache_reserved": ceilings.hot_cache_reserved,
            "device_cap": ceilings.device_cap,
            "reserve": ceilings.reserve,
            "total": ceilings.total,
        },
    }


def readings_body(memory: MemoryState | None, now: float) -> dict[str, Any]:
    """Every number with its source and its age in seconds."""
    if memory is None:
        empty: dict[str, Any] = {name: None for name in (*_NUMBERS, "os_pressure", "allocator")}
        return {**empty, "age_seconds": None, "degraded": []}
    reading = memory.reading
    return {
        **{name: _number(reading, name, now) for name in _NUMBERS},
        "os_pressure": _number(reading, "os_pressure", now),
        "allocator": _allocator(memory.usage),
        "age_seconds": _rounded(now - reading.taken_at),
        "degraded": list(reading.degraded),
    }


def entry_body(entry: Entry) -> dict[str, Any]:
    """One decision, the reading behind it and what became of it. ``times``: how many ticks in a row
    decided the same, from ``time`` to ``last_time``; the events give the first of them only.

    ``reclaimed_bytes``: what earlier actions have freed late, see ``Entry``.

    What the pool unloads to make room for a load is an entry too. The events give it when the model
    is asked to leave, and again under the same number once it has left.
    """
    memory = entry.decision.memory
    return {
        "number": entry.number,
        "time": round(entry.unix_at, 3),
        "last_time": round(entry.last_unix_at, 3),
        "times": entry.times,
        **_decision_body(entry.decision),
        "changed": entry.changed,
        "reclaimed_bytes": entry.reclaimed,
        "applied": memory.enforce or entry.eviction is not None,
        "ceiling_bytes": memory.ceiling,
        "soft_bytes": memory.ceilings.soft,
        "hard_bytes": memory.ceilings.hard,
        "binding": binding_name(memory.ceilings, memory.ceilings.binding) or None,
        "reading": {
            "age_seconds": _rounded(entry.last_at - memory.reading.taken_at),
            **{name: getattr(memory.reading, name) for name in _NUMBERS},
        },
        "actions": _actions(entry) if entry.eviction is None else [_eviction(entry.eviction)],
    }


def _decision_body(decision: Decision | None) -> dict[str, Any]:
    memory = None if decision is None else decision.memory
    return {
        "level": None if memory is None else memory.level.label,
        "emergency": None if memory is None else memory.emergency,
        **_pause(memory),
        "usage_bytes": None if memory is None else memory.usage.bytes,
        "rule": None if decision is None else decision.rule,
        "reason": None if decision is None else decision.reason,
    }


def _pause(memory: MemoryState | None) -> dict[str, Any]:
    pause = None if memory is None else memory.pause
    return {
        "admission_paused": None if memory is None else memory.paused,
        "pause_cause": None if pause is None else pause.value,
    }


def _actions(entry: Entry) -> list[dict[str, Any]]:
    outcomes = {done.action: done for done in entry.outcomes}
    actions = []
    for action in notable_actions(entry.decision.actions):
        done = outcomes.get(action)
        actions.append(
            {
                "action": ACTION_NAMES[type(action)],
                **asdict(action),
                "accepted": None if done is None else done.accepted,
                "freed_bytes": None if done is None else done.freed,
                "in_flight": None if done is None else done.in_flight,
            }
        )
    return actions


def _eviction(eviction: Eviction) -> dict[str, Any]:
    return {
        "action": ACTION_NAMES[EvictModel],
        "model_id": eviction.model_id,
        "bytes": eviction.bytes,
        "for_model": eviction.for_model,
        "accepted": eviction.freed != 0,
        "freed_bytes": eviction.freed,
        "in_flight": eviction.freed is None,
    }


def _clamps(policy: GuardPolicy, ceilings: Ceilings) -> list[dict[str, Any]]:
    return [
        {**asdict(clamp), "name": KEYS[clamp.name], "cause": clamp.cause.value}
        for clamp in clamps(policy, ceilings.static, ceilings.metal)
    ]


def preview_body(reading: MemoryReading) -> dict[str, Any]:
    """The ceiling that each tier would have, from the last reading, even if that is old."""
    now = reading.taken_at
    inactive, external = recent(reading, "inactive", now), recent(reading, "external", now)
    cached = None if inactive is None else inactive + file_cache(inactive, external or 0)
    return {
        tier.value: {
            "reserve_bytes": ceilings.reserve,
            "free_bytes": recent(reading, "free", now),
            "inactive_bytes": cached,
            "other_apps_bytes": pushed_apps(reading, tier, now),
            "static_bytes": ceilings.static,
            "dynamic_bytes": ceilings.dynamic,
            "metal_cap_bytes": ceilings.metal,
            "ceiling_bytes": ceilings.admission,
            "binding": lowest(ceilings.terms)[0].value,
        }
        for tier, ceilings in ceilings_by_tier(reading).items()
    }


def _number(reading: MemoryReading, name: str, now: float) -> dict[str, Any] | None:
    value = getattr(reading, name)
    if value is None:
        return None
    source = reading.sources.get(name)
    return {
        "value": value.value if isinstance(value, OsPressure) else value,
        "source": None if source is None else source.name,
        "age_seconds": _rounded(age(reading, name, now)),
    }


def _allocator(usage: Usage) -> dict[str, Any] | None:
    """The allocator's numbers; None while they are too old to count."""
    if not usage.fresh:
        return None
    return {"active": usage.active, "pool": usage.buffer_cache, "unreleased": usage.unreleased}


def _as_set(key: str, value: Any) -> Any:
    if key == "custom_ceiling_gb":
        return _gigabytes(value)
    return value.value if isinstance(value, Tier) else value


def _gigabytes(size: int | None) -> float | None:
    return None if size is None else size / GiB


def _rounded(seconds: float) -> float:
    return round(max(0.0, seconds), 3)
