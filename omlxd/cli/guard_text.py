"""How the memory guard and its decisions read in a terminal. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from omlxd.cli.draw import bar, percent, size, table

SHOWN = 5
"""Decisions shown below the policy."""


def render(guard: Mapping[str, Any]) -> list[str]:
    """The answer of ``GET /v1/memory-guard`` as lines."""
    lines = [_headline(guard), *_usage(guard)]
    lines += [f"  ! {clamp['text']}" for clamp in guard["clamps"]]
    lines += [f"  ! {line}" for line in guard["readings"]["degraded"]]
    lines += ["", "policy", *_policy(guard["policy"])]
    lines += [
        f"  ! {key} {_value(value)} was set, and is out of force: it contradicts the others"
        for key, value in guard["dormant"].items()
    ]
    if guard["preview"] is not None:
        lines += ["", "the ceiling under each tier now", *_preview(guard)]
    recent = [event for event in guard["decisions"] if _tells_something(event)]
    if recent:
        lines += ["", "decisions", *(line for e in recent[-SHOWN:] for line in render_event(e))]
    return lines


def _tells_something(event: Mapping[str, Any]) -> bool:
    return bool(event["actions"] or event["changed"] or event["reclaimed_bytes"])


def render_event(event: Mapping[str, Any]) -> list[str]:
    """One decision: when, how bad, why, and a line for each action."""
    at, until = (_clock(event[key]) for key in ("time", "last_time"))
    times = f" (x{event['times']} until {until})" if event["times"] > 1 else ""
    emergency = " EMERGENCY" if event["emergency"] else ""
    paused = ", admission paused" if event["admission_paused"] else ""
    lines = [
        f"  {at}  {event['level']}{emergency}  {size(event['usage_bytes'])} of "
        f"{size(event['ceiling_bytes'])}{paused}  {event['reason']}{times}"
    ]
    if event["reclaimed_bytes"]:
        lines.append(f"            the pool gave back {size(event['reclaimed_bytes'])}")
    return lines + [f"            {_action(action, event)}" for action in event["actions"]]


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def _headline(guard: Mapping[str, Any]) -> str:
    if not guard["enabled"]:
        return "memory guard  off: there is no ceiling"
    if not guard["running"]:
        return "memory guard  not running"
    monitor = "  (monitor: shows what it would do)" if guard["monitor"] else ""
    wait = "would wait" if guard["monitor"] else "wait"
    paused = f", new requests {wait}" if guard["admission_paused"] else ""
    return f"memory guard  {guard['level'] or 'starting'}{paused}{monitor}"


def _usage(guard: Mapping[str, Any]) -> list[str]:
    ceiling, used = guard["ceiling"], guard["usage_bytes"]
    total = ceiling["bytes"]
    if total is None:
        return [f"  {size(used)} in use"]
    bounds = ceiling["bounds"]
    custom = guard["policy"]["tier"]["value"] == "custom"
    names = {"dynamic": "custom"} if custom else {}
    terms = ", ".join(
        f"{names.get(name, name).replace('_', ' ')} {size(value)}"
        for name, value in ceiling["terms"].items()
        if value is not None
    )
    # The level says the rest by itself.
    unseen = ceiling["pause_cause"] not in (None, "level")
    return [
        *([f"  {ceiling['pause_reason']}"] if unseen else []),
        f"  {bar(used, total, (bounds['soft'], bounds['hard']))}  {size(used)} of {size(total)} "
        f"({percent(used, total)})",
        f"  soft {size(bounds['soft'])}, hard {size(bounds['hard'])}; the ceiling is the least of "
        f"{terms}",
        f"  bound by {ceiling['binding'].replace('_', ' ')}: {ceiling['remedy']}",
    ]


def _policy(policy: Mapping[str, Any]) -> list[str]:
    rows = []
    for key, entry in policy.items():
        value, own = entry["value"], entry["set"]
        origin = entry["origin"] if own is not None else f"{entry['origin']}, the tier's own"
        rows.append((key, _value(value), origin if value is not None else "-"))
    return table(("KEY", "VALUE", "FROM"), rows)


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _preview(guard: Mapping[str, Any]) -> list[str]:
    now = guard["policy"]["tier"]["value"]
    head = ("TIER", ">CEILING", "BOUND BY", ">RESERVE", "")
    rows = [
        (
            tier,
            size(preview["ceiling_bytes"]),
            preview["binding"].replace("_", " "),
            size(preview["reserve_bytes"]),
            "in force" if tier == now else "",
        )
        for tier, preview in guard["preview"].items()
    ]
    return table(head, rows)


def _action(action: Mapping[str, Any], event: Mapping[str, Any]) -> str:
    name = action["action"].replace("_", " ")
    subject = action.get("model_id") or ", ".join(action.get("model_ids", ()))
    what = f"{name} {subject}".rstrip()
    if not event["applied"]:
        return f"would: {what}"
    if not action["accepted"]:
        return f"{what}: refused"
    if action["in_flight"]:
        return f"{what}: under way"
    freed = action["freed_bytes"]
    return what if freed is None else f"{what}: freed {size(freed)}"
