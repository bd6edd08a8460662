"""``omlxd guard``: show, change and follow the memory guard."""

import argparse
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from omlxd.cli.client import (
    Daemon,
    Refused,
    Unreachable,
    add_daemon_arguments,
    connect,
    print_error,
)
from omlxd.cli.terminal import bar, percent, size, table
from omlxd.units import GiB, parse_bytes

PATH = "/v1/memory-guard"
RESETTABLE = {
    "enabled": "enabled",
    "enforce": "enforce",
    "tier": "tier",
    "ceiling": "custom_ceiling_gb",
    "soft": "soft_threshold",
    "hard": "hard_threshold",
}
"""Name on the command line -> key of the API."""


def add_arguments(commands: Any) -> None:
    text = "Show, change and follow what the memory guard does."
    parser = commands.add_parser("guard", help="the memory guard", description=text)
    _common(parser)
    parser.set_defaults(run=run)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    # A verb has no own defaults, so it keeps the options that were given before it.
    _common(verbs.add_parser("show", help="its policy, the ceiling and what it did"), late=True)
    events = verbs.add_parser("events", help="its decisions as they are made")
    _common(events, late=True)
    change = verbs.add_parser("set", help="change its policy; survives a restart")
    _common(change, late=True)
    change.add_argument("--tier", choices=("safe", "balanced", "aggressive", "custom"))
    change.add_argument(
        "--ceiling", metavar="SIZE", type=_size, help="of tier custom, for example 24GB"
    )
    change.add_argument("--soft", metavar="SHARE", type=float, help="soft mark, such as 0.85")
    change.add_argument("--hard", metavar="SHARE", type=float, help="hard mark, such as 0.95")
    _switch(change, "enabled", "--enable", "--disable")
    _switch(change, "enforce", "--enforce", "--monitor")
    change.add_argument(
        "--reset",
        metavar="KEY",
        action="append",
        default=[],
        choices=(*RESETTABLE, "all"),
        help=f"back to what the configuration says: {', '.join(RESETTABLE)} or all",
    )


def run(arguments: argparse.Namespace) -> int:
    try:
        match arguments.verb:
            case "set":
                return _set(arguments)
            case "events":
                return _events(connect(arguments), as_json=arguments.json)
            case _:
                _show(connect(arguments).get(PATH), as_json=arguments.json)
                return 0
    except (Unreachable, Refused) as error:
        return print_error(error)


def changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """The body of the PUT that the arguments ask for. Pure."""
    names = RESETTABLE if "all" in arguments.reset else arguments.reset
    body: dict[str, Any] = {RESETTABLE[name]: None for name in names}
    wanted = {
        "tier": arguments.tier,
        "custom_ceiling_gb": None if arguments.ceiling is None else arguments.ceiling / GiB,
        "soft_threshold": arguments.soft,
        "hard_threshold": arguments.hard,
        "enabled": arguments.enabled,
        "enforce": arguments.enforce,
    }
    return body | {key: value for key, value in wanted.items() if value is not None}


def _set(arguments: argparse.Namespace) -> int:
    body = changes(arguments)
    if not body:
        raise Refused("nothing to set; `omlxd guard set --help` lists what can be.")
    _show(connect(arguments).put(PATH, body), as_json=arguments.json)
    return 0


def _show(answer: dict[str, Any], *, as_json: bool) -> None:
    print(json.dumps(answer, indent=1) if as_json else "\n".join(render(answer)))


def _events(daemon: Daemon, *, as_json: bool) -> int:
    for event in daemon.events(f"{PATH}/events"):
        print(json.dumps(event) if as_json else "\n".join(render_event(event)), flush=True)
    raise Unreachable("the daemon has ended the stream; it stops.")


def _common(parser: argparse.ArgumentParser, *, late: bool = False) -> None:
    if not late:
        add_daemon_arguments(parser)
        parser.add_argument("--json", action="store_true", help="the daemon's answer as it is")
        return
    suppress = argparse.SUPPRESS
    parser.add_argument("--url", default=suppress, help="address of the daemon")
    parser.add_argument("--home", default=suppress, metavar="DIR", help="folder of all files")
    parser.add_argument("--json", action="store_true", default=suppress, help="for programs")


def _switch(parser: argparse.ArgumentParser, name: str, on: str, off: str) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument(on, dest=name, action="store_true", default=None)
    group.add_argument(off, dest=name, action="store_false", default=None)


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
    """One decision: its time, level and reason, and a line for each action."""
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
    # The level alone says the rest.
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
