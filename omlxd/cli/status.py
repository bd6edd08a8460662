"""``omlxd status``: the daemon's memory, models and requests on one screen."""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from omlxd.cli.client import (
    Daemon,
    Refused,
    Unreachable,
    add_daemon_arguments,
    connect,
    print_error,
)
from omlxd.cli.terminal import bar, duration, percent, size, table

WATCH_INTERVAL = 1.0
"""Seconds between two requests of ``--watch``."""
_CLEAR = "\x1b[H\x1b[2J"
_AT_REST = frozenset({"absent"})


def add_arguments(commands: Any) -> None:
    parser = commands.add_parser(
        "status",
        help="show memory, models and requests of the running daemon",
        description="Show memory, models and requests of the running daemon.",
    )
    add_daemon_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the daemon's answer as it is")
    parser.add_argument("--watch", action="store_true", help="show it again every second")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        daemon = connect(arguments)
        while True:
            show(daemon, arguments)
            if not arguments.watch:
                return 0
            time.sleep(WATCH_INTERVAL)
    except (Unreachable, Refused) as error:
        return print_error(error)


def show(daemon: Daemon, arguments: argparse.Namespace) -> None:
    status = daemon.get("/status")
    if not isinstance(status, dict) or "server" not in status:
        raise Unreachable(f"something else than omlxd answers at {daemon.url}.")
    if arguments.json:
        text = json.dumps(status, indent=None if arguments.watch else 1)
    else:
        text = "\n".join(render(status, daemon.url))
    if arguments.watch and not arguments.json and sys.stdout.isatty():
        text = _CLEAR + text
    print(text, flush=True)


def render(status: Mapping[str, Any], url: str) -> list[str]:
    """The lines for a person. Pure."""
    server = status["server"]
    lines = [f"omlxd {server['version']}  {server['status']}  {url}  up {_up(server)}"]
    if "pressure_level" in status:
        lines += ["", *memory(status)]
    return [*lines, "", *_models(status["models"]), "", *_requests(status["requests"])]


def memory(status: Mapping[str, Any]) -> list[str]:
    """The usage, its marks, and what bounds the ceiling."""
    ceiling = status["ceiling"]
    used, total = status["current_bytes"], ceiling["bytes"]
    level = status["pressure_level"] if status["enabled"] else "off"
    watching = total is not None and not ceiling["enforced"]
    if watching:
        level += " (monitor mode: nothing is done about it)"
    if total is None:
        return [f"memory  {level}  {size(used)} in use, no ceiling"]
    bounds = ceiling["bounds"]
    soft, hard = bounds["soft"], bounds["hard"]
    lines = [
        f"memory  {level}  {bar(used, total, (soft, hard))}  {size(used)} of {size(total)} "
        f"({percent(used, total)})",
        f"        soft {size(soft)}, hard {size(hard)}, tier {status['memory_guard_tier']}, "
        f"bound by {ceiling['binding'].replace('_', ' ')}",
    ]
    if ceiling["admission_paused"]:
        wait = "would wait" if watching else "wait"
        lines.append(f"        new requests {wait}: {ceiling['pause_reason']}")
    return lines + [f"        ! {line}" for line in status["readings"]["degraded"]]


def _models(models: list[dict[str, Any]]) -> list[str]:
    shown = [model for model in models if model["state"] not in _AT_REST]
    resting = len(models) - len(shown)
    rest = f"{resting} more on disk" if resting else ""
    if not shown:
        return [f"models  none in memory{', ' + rest if rest else ''}"]
    head = ("MODEL", "STATE", ">WEIGHTS", ">CACHE", ">REQUESTS", "")
    rows = [
        (
            model["id"],
            _state(model),
            size(model["weights_bytes"]),
            size(model["cache_bytes"]),
            _counts(model),
            _detail(model),
        )
        for model in shown
    ]
    return ["models", *table(head, rows), *([f"  {rest}"] if rest else [])]


def _state(model: Mapping[str, Any]) -> str:
    progress = model.get("progress")
    state = model["state"] + (" (pinned)" if model["pinned"] else "")
    return f"{state} {progress:.0%}" if progress is not None else state


def _counts(model: Mapping[str, Any]) -> str:
    waiting = f" +{model['waiting']} waiting" if model["waiting"] else ""
    return f"{model['leases']}{waiting}"


def _detail(model: Mapping[str, Any]) -> str:
    problem = model.get("problem")
    if problem is not None:
        return str(problem["message"])
    if model.get("detail"):
        return str(model["detail"])
    idle = model.get("idle_seconds")
    return "" if idle is None else f"idle {duration(idle)}"


def _requests(requests: list[dict[str, Any]]) -> list[str]:
    if not requests:
        return ["requests  none"]
    head = ("REQUEST", "MODEL", "PHASE", ">PROMPT", ">TOKENS", ">AGE")
    rows = [
        (
            request["id"],
            request["model_id"] or "-",
            request["phase"],
            _prompt(request),
            str(request["completion_tokens"]),
            duration(request["age"]),
        )
        for request in requests
    ]
    return ["requests", *table(head, rows)]


def _prompt(request: Mapping[str, Any]) -> str:
    total = request["prompt_total"]
    return "-" if total is None else f"{request['prompt_done']}/{total}"


def _up(server: Mapping[str, Any]) -> str:
    return duration(server["uptime"])
