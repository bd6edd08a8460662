"""``omlxd models``: list, load, unload, pin, pull and delete models, and ask whether one fits."""

import argparse
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omlxd.cli.client import (
    Daemon,
    Refused,
    Unreachable,
    add_daemon_arguments,
    connect,
    model_path,
    model_statuses,
    print_error,
)
from omlxd.cli.models_disk import pull_model, remove
from omlxd.cli.terminal import Progress, duration, size, table
from omlxd.printable import printable

POLL_INTERVAL = 0.25
"""Seconds between two requests for the progress of a load."""


def add_arguments(commands: Any) -> None:
    text = "List, load, unload, pin, pull and delete models, and ask whether one fits."
    parser = commands.add_parser("models", help="the models", description=text)
    _common(parser)
    parser.set_defaults(run=_reporting_errors(show_list), json=False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    listing = _verb(verbs, "list", show_list, "all models, also the broken ones (the default)")
    listing.add_argument("--json", action="store_true", help="for programs")
    for name, run, text in (
        ("load", load, "load it and wait until it is there"),
        ("unload", unload, "unload it, after its running requests"),
        ("pin", pin, "load it at start, and never unload it for memory or idleness"),
        ("unpin", unpin, "let it be unloaded again"),
    ):
        _verb(verbs, name, run, text).add_argument("model", metavar="ID")
    fit = _verb(verbs, "fit", show_fit, "would it fit, now or ever, under each tier of the guard")
    fit.add_argument("model", metavar="ID")
    fit.add_argument("--context", type=int, metavar="TOKENS", help="else the model's whole one")
    fit.add_argument("--concurrency", type=int, metavar="N", default=1, help="requests at a time")
    fit.add_argument("--json", action="store_true", help="for programs")
    pull = _verb(verbs, "pull", pull_model, "download it from the Hugging Face hub")
    pull.add_argument("repository", metavar="ORG/NAME")
    pull.add_argument("--revision", help="branch, tag or commit; else the default branch")
    rm = _verb(verbs, "rm", remove, "delete its files from omlxd's own models folder")
    rm.add_argument("model", metavar="ID")
    rm.add_argument("--yes", action="store_true", help="do not ask")


def _verb(verbs: Any, name: str, run: Callable[[Any], int], text: str) -> Any:
    parser = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    _common(parser, late=True)
    parser.set_defaults(run=_reporting_errors(run))
    return parser


def _common(parser: argparse.ArgumentParser, *, late: bool = False) -> None:
    if not late:
        add_daemon_arguments(parser)
        return
    # A verb has no own defaults, so it keeps the options that were given before it.
    suppress = argparse.SUPPRESS
    parser.add_argument("--url", default=suppress, help="address of the daemon")
    parser.add_argument("--home", default=suppress, metavar="DIR", help="folder of all files")


def _reporting_errors(run: Callable[[Any], int]) -> Callable[[Any], int]:
    def command(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except (Unreachable, Refused) as error:
            return print_error(error)

    return command


def show_list(arguments: argparse.Namespace) -> int:
    models = model_statuses(connect(arguments))
    if arguments.json:
        print(json.dumps(models, indent=1))
    else:
        print("\n".join(render_models(models)))
    return 0


def show_fit(arguments: argparse.Namespace) -> int:
    query = f"?concurrency={arguments.concurrency}"
    if arguments.context is not None:
        query += f"&context={arguments.context}"
    fit = connect(arguments).get(model_path(arguments.model, "/fit") + query)
    print(json.dumps(fit, indent=1) if arguments.json else "\n".join(render_fit(fit)))
    return 0


def load(arguments: argparse.Namespace) -> int:
    daemon = connect(arguments)
    model_id = daemon.get(model_path(arguments.model))["id"]
    done = threading.Event()
    outcome: list[Any] = []

    def ask() -> None:
        try:
            loader = connect(arguments)
            outcome.append(loader.post(model_path(model_id, "/load"), {}, patience=None))
        except (Unreachable, Refused) as error:
            outcome.append(error)
        finally:
            done.set()

    # A daemon thread: an interrupt does not wait. The daemon drops a load whose client has gone.
    threading.Thread(target=ask, daemon=True).start()
    _watch(daemon, model_id, done)
    answer = outcome[0]
    if isinstance(answer, Unreachable | Refused):
        raise answer
    print(f"{model_id} is loaded: {size(answer['weights_bytes'])}")
    return 0


def _watch(daemon: Daemon, model_id: str, done: threading.Event) -> None:
    """Draw the progress of a load until it ends. Say why, when it has to wait."""
    progress, told = Progress(model_id, None), None
    drawn = False
    while not done.wait(POLL_INTERVAL):
        model = next((m for m in model_statuses(daemon) if m["id"] == model_id), None)
        if model is None:
            continue
        if model["total_bytes"]:
            drawn = True
            progress.at(model["loaded_bytes"] or 0, model["total_bytes"])
        elif model["state"] == "queued" and model["detail"] != told:
            told = model["detail"]
            print(f"{model_id} waits (place {model['position']}): {told}", file=sys.stderr)
    if drawn:
        progress.end()


def unload(arguments: argparse.Namespace) -> int:
    daemon = connect(arguments)
    answer = daemon.post(model_path(arguments.model, "/unload"), {}, patience=None)
    print(f"{answer['id']} is unloaded: {size(answer['freed_bytes'])} freed")
    return 0


def pin(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).patch(model_path(arguments.model), {"pinned": True})
    print(f"{answer['id']} is pinned")
    return 0


def unpin(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).patch(model_path(arguments.model), {"pinned": False})
    print(f"{answer['id']} is not pinned")
    return 0


_VERDICTS = {
    "now": "yes, now",
    "after_evictions": "once models leave",
    "not_now": "not now",
    "never": "never",
}


def render_models(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a model. Below, what is wrong with broken and failed ones."""
    if not models:
        return ["No models. `omlxd models pull ORG/NAME` gets one."]
    head = ("MODEL", "STATE", ">SIZE", ">CONTEXT", "PINNED", "ALIASES")
    rows = [
        (
            model["id"],
            _state(model),
            size(model["weights_bytes"]),
            _number(model["context_length"]),
            "yes" if model["pinned"] else "",
            ", ".join(model["aliases"]),
        )
        for model in models
    ]
    problems = [line for model in models if model["problem"] for line in _problem(model)]
    return [*table(head, rows), *([""] if problems else []), *problems]


def _state(model: Mapping[str, Any]) -> str:
    progress = model.get("progress")
    return str(model["state"]) if progress is None else f"{model['state']} {progress:.0%}"


def _problem(model: Mapping[str, Any]) -> list[str]:
    problem = model["problem"]
    file, message = problem["file"], str(problem["message"])
    where = f"{file} " if file and file not in message else ""
    again = problem["retry_in"]
    later = f" (tried again in {duration(again)} at the earliest)" if again else ""
    return [printable(f"  ! {model['id']}: {where}{message}{later}")]


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}".replace(",", " ")


def render_fit(fit: Mapping[str, Any]) -> list[str]:
    """The memory that the model needs, and whether it fits under each tier of the guard."""
    requests = "1 request" if fit["concurrency"] == 1 else f"{fit['concurrency']} requests"
    weights = "in memory" if fit["loaded"] else "measured" if fit["weights_measured"] else "files"
    lines = [
        f"{fit['id']}  {requests} of {_number(fit['context'])} tokens",
        "",
        f"  weights       {size(fit['weights_bytes']):>9}  ({weights})",
    ]
    if fit["unknown"] is None:
        lines += [
            f"  KV cache      {size(fit['kv_bytes']):>9}",
            f"  prefill peak  {size(fit['prefill_bytes']):>9}",
            f"  total         {size(fit['total_bytes']):>9}",
        ]
    else:
        lines.append(f"  KV cache and prefill are not known: {fit['unknown']}.")
    if not fit["loaded"] and fit["needed_bytes"] != fit["total_bytes"]:
        lines.append(f"  to load it    {size(fit['needed_bytes']):>9}  (room for a first prompt)")
    tiers: Mapping[str, Mapping[str, Any]] = fit["tiers"]
    if not tiers:
        return [*lines, "", "  Nothing is known of this machine's memory yet."]
    head = ("TIER", "FITS", ">CEILING", "BOUND BY", "")
    rows = [_tier(name, found, name == fit["tier"]) for name, found in tiers.items()]
    return [*lines, "", *table(head, rows)]


def _tier(name: str, found: Mapping[str, Any], in_force: bool) -> tuple[str, ...]:
    what = found["remedy"] or ""
    if found["evict"]:
        what = f"unload {', '.join(found['evict'])}"
    return (
        f"{name} *" if in_force else name,
        _VERDICTS.get(found["verdict"], found["verdict"]),
        size(found["ceiling_bytes"]),
        found["binding"].replace("_", " "),
        what,
    )
