"""``omlxd guard``: show, change and follow the memory guard."""

import argparse
import json
from typing import Any

from omlxd.cli.client import (
    Daemon,
    Refused,
    Unreachable,
    add_daemon_arguments,
    complain,
    speaking,
)
from omlxd.cli.guard_text import render, render_event
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
    # Without defaults of its own a verb keeps what was given before it.
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
                return _events(speaking(arguments), as_json=arguments.json)
            case _:
                _show(speaking(arguments).get(PATH), as_json=arguments.json)
                return 0
    except (Unreachable, Refused) as error:
        return complain(error)


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
    _show(speaking(arguments).put(PATH, body), as_json=arguments.json)
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
