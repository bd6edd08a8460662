"""The memory guard as JSON: plain dictionaries; ``null`` is unknown, zero is zero."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from omlxd.api.flat import flat
from omlxd.enforcer.control import GuardControl
from omlxd.enforcer.explain import facts
from omlxd.enforcer.record import Entry, notable_actions
from omlxd.enforcer.settings import FIELDS, KEYS, PolicyInForce
from omlxd.memory_text import binding_name, in_words, remedy
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
from omlxd.policy.ceiling import Ceilings
from omlxd.policy.decision import Decision
from omlxd.policy.describe import GuardStatus, guard_status
from omlxd.policy.preview import tier_preview
from omlxd.policy.readings import MemoryReading, OsPressure
from omlxd.policy.tiers import GuardPolicy, Tier, clamps
from omlxd.policy.usage import Usage, age
from omlxd.units import GiB

RECENT: Final = 20
"""Decisions in one answer; the events have all that are kept."""

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
"""The name of each action as clients read it; it stays when a class is renamed."""

_NUMBERS: Final = tuple(
    f.name
    for f in fields(MemoryReading)
    if f.name not in ("taken_at", "os_pressure", "sources", "degraded")
)


def guard_body(control: GuardControl) -> dict[str, Any]:
    """The answer of GET and PUT ``/v1/memory-guard``."""
    in_force, entry, report = control.in_force, control.latest, control.report
    policy = in_force.policy
    return {
        "enabled": policy.enabled,
        "running": control.running,
        "monitor": not policy.enforce,
        "policy": policy_body(in_force),
        "dormant": dict(in_force.dormant),
        **(_unknown_decision() if entry is None else _decision_body(entry.decision)),
        "ceiling": ceiling_body(entry),
        "clamps": [] if entry is None else _clamps(policy, entry.decision.ceilings),
        "preview": None if entry is None else _preview(entry.reading),
        "readings": readings_body(entry, control.now),
        "decisions": [entry_body(kept) for kept in control.entries[-RECENT:]],
        "tick": {
            "milliseconds": None if report is None else round(report.took * 1000, 3),
            "age_seconds": None if report is None else _rounded(control.now - report.at),
            "looks": None if report is None else report.looks,
            "failed": None if report is None else report.failed,
            "failures": control.failures,
        },
        "poll_interval_seconds": control.interval,
    }


def status_keys(control: GuardControl) -> dict[str, Any]:
    """What the guard adds to ``/status``: the flat keys that clients know, and three objects."""
    entry, policy = control.latest, control.in_force.policy
    if entry is None:
        status = _unread(policy, control.interval)
    else:
        status = guard_status(
            entry.decision, policy, poll_interval=control.interval, running=control.running
        )
    return {
        **flat(status),
        **status.formatted(),
        "ceiling": ceiling_body(entry),
        "readings": readings_body(entry, control.now),
        # Neither tier of the prefix cache exists yet: null, which is not the same as empty.
        "cache": {"ram": None, "ssd": None},
    }


def policy_body(in_force: PolicyInForce) -> dict[str, Any]:
    """For each key that may be set: the value in force, the one that was set, and where."""
    policy = in_force.policy
    effective = {
        "enabled": policy.enabled,
        "enforce": policy.enforce,
        "tier": policy.tier.value,
        "custom_ceiling_gb": _gigabytes(policy.custom_ceiling_bytes),
        "soft_threshold": policy.soft,
        "hard_threshold": policy.hard,
    }
    return {
        key: {
            "value": effective[key],
            "set": _as_set(key, getattr(policy, field)),
            "origin": in_force.origins[key].value,
        }
        for key, field in FIELDS.items()
    }


def ceiling_body(entry: Entry | None) -> dict[str, Any]:
    """The ceiling, its terms, the one that binds, and every bound that follows from it; whether
    it is enforced, and whether and why new requests wait (where it is not: would wait)."""
    if entry is None:
        keys = (
            *("bytes", "binding", "remedy", "enforced", "admission_paused", "pause_cause"),
            *("pause_reason", "terms", "bounds"),
        )
        return dict.fromkeys(keys)
    decision, ceilings = entry.decision, entry.decision.ceilings
    off = ceilings.ceiling is None
    return {
        "bytes": ceilings.ceiling,
        "binding": None if off else binding_name(ceilings, ceilings.binding),
        "remedy": None if off else remedy(ceilings, ceilings.binding),
        "enforced": decision.apply and not off,
        **_pause(decision),
        "pause_reason": in_words(facts(decision)) if decision.paused else None,
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


def readings_body(entry: Entry | None, now: float) -> dict[str, Any]:
    """Every number with its source and its age in seconds."""
    if entry is None:
        empty: dict[str, Any] = {name: None for name in (*_NUMBERS, "os_pressure", "allocator")}
        return {**empty, "age_seconds": None, "degraded": []}
    reading, usage = entry.reading, entry.decision.usage
    return {
        **{name: _number(reading, name, now) for name in _NUMBERS},
        "os_pressure": _number(reading, "os_pressure", now),
        "allocator": _allocator(usage),
        "age_seconds": _rounded(now - reading.taken_at),
        "degraded": list(reading.degraded),
    }


def entry_body(entry: Entry) -> dict[str, Any]:
    """One decision, what it rested on and what came of it. ``times``: so many ticks in a row came
    to the same, from ``time`` to ``last_time``; who follows the events is told of the first.

    ``reclaimed_bytes``: what earlier actions freed that cannot say so at once, see ``Entry``.
    """
    decision, reading = entry.decision, entry.reading
    outcomes = {done.action: done for done in entry.outcomes}
    actions = []
    for action in notable_actions(decision.actions):
        done = outcomes.get(action)
        actions.append(
            {
                **_action(action),
                "accepted": None if done is None else done.accepted,
                "freed_bytes": None if done is None else done.freed,
                "in_flight": None if done is None else done.in_flight,
            }
        )
    return {
        "number": entry.number,
        "time": round(entry.unix_at, 3),
        "last_time": round(entry.last_unix_at, 3),
        "times": entry.times,
        **_decision_body(decision),
        "changed": entry.changed,
        "reclaimed_bytes": entry.reclaimed,
        "applied": decision.apply,
        "ceiling_bytes": decision.ceiling,
        "soft_bytes": decision.ceilings.soft,
        "hard_bytes": decision.ceilings.hard,
        "binding": binding_name(decision.ceilings, decision.ceilings.binding) or None,
        "reading": {
            "age_seconds": _rounded(entry.last_at - reading.taken_at),
            **{name: getattr(reading, name) for name in _NUMBERS},
        },
        "actions": actions,
    }


def _decision_body(decision: Decision) -> dict[str, Any]:
    return {
        "level": decision.level.label,
        "emergency": decision.emergency,
        **_pause(decision),
        "usage_bytes": decision.usage.bytes,
        "rule": decision.rule,
        "reason": decision.reason,
    }


def _pause(decision: Decision) -> dict[str, Any]:
    pause = decision.pause
    return {
        "admission_paused": decision.paused,
        "pause_cause": None if pause is None else pause.value,
    }


def _unknown_decision() -> dict[str, Any]:
    keys = (
        *("level", "emergency", "admission_paused", "pause_cause"),
        *("usage_bytes", "rule", "reason"),
    )
    return dict.fromkeys(keys)


def _action(action: Action) -> dict[str, Any]:
    return {"action": ACTION_NAMES[type(action)], **asdict(action)}


def _clamps(policy: GuardPolicy, ceilings: Ceilings) -> list[dict[str, Any]]:
    return [
        {**asdict(clamp), "name": KEYS[clamp.name], "cause": clamp.cause.value}
        for clamp in clamps(policy, ceilings.static, ceilings.metal)
    ]


def _preview(reading: MemoryReading) -> dict[str, Any]:
    """As of the reading itself: its age must not empty the preview."""
    found = tier_preview(reading, reading.taken_at)
    return {tier.value: asdict(preview) for tier, preview in found.items()}


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
    """None while the device thread's numbers are too old to count."""
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


def _unread(policy: GuardPolicy, interval: float) -> GuardStatus:
    """Before the first tick: zeros, as these keys have them for what is not known."""
    zeros: Mapping[str, Any] = {f.name: 0 for f in fields(GuardStatus) if f.name.endswith("_bytes")}
    return GuardStatus(
        **{
            **zeros,
            "enabled": False,
            "memory_guard_tier": policy.tier.value,
            "memory_guard_custom_ceiling_bytes": policy.custom_ceiling_bytes or 0,
            "other_app_reclaim_ratio": policy.constants.reclaim_ratio,
            "soft_threshold": policy.soft,
            "hard_threshold": policy.hard,
            "pressure_level": "ok",
            "utilization": 0.0,
            "poll_interval_seconds": interval,
        }
    )
