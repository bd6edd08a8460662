"""``omlxd models``: list, load, unload, pin, pull and delete models, and ask whether one fits."""

import argparse
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

from omlxd.cli.client import (
    Daemon,
    Refused,
    Unreachable,
    add_daemon_arguments,
    complain,
    model_path,
    model_statuses,
    speaking,
)
from omlxd.cli.draw import size
from omlxd.cli.models_disk import pull_model, remove
from omlxd.cli.models_text import render_fit, render_models
from omlxd.cli.progress import Progress

LOOK = 0.25
"""Seconds between two looks at a load."""


def add_arguments(commands: Any) -> None:
    text = "List, load, unload, pin, pull and delete models, and ask whether one fits."
    parser = commands.add_parser("models", help="the models", description=text)
    _common(parser)
    parser.set_defaults(run=_told(show_list), json=False)
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
    parser.set_defaults(run=_told(run))
    return parser


def _common(parser: argparse.ArgumentParser, *, late: bool = False) -> None:
    if not late:
        add_daemon_arguments(parser)
        return
    # Without defaults of its own a verb keeps what was given before it.
    suppress = argparse.SUPPRESS
    parser.add_argument("--url", default=suppress, help="address of the daemon")
    parser.add_argument("--home", default=suppress, metavar="DIR", help="folder of all files")


def _told(run: Callable[[Any], int]) -> Callable[[Any], int]:
    def command(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except (Unreachable, Refused) as error:
            return complain(error)

    return command


def show_list(arguments: argparse.Namespace) -> int:
    models = model_statuses(speaking(arguments))
    if arguments.json:
        print(json.dumps(models, indent=1))
    else:
        print("\n".join(render_models(models)))
    return 0


def show_fit(arguments: argparse.Namespace) -> int:
    query = f"?concurrency={arguments.concurrency}"
    if arguments.context is not None:
        query += f"&context={arguments.context}"
    fit = speaking(arguments).get(model_path(arguments.model, "/fit") + query)
    print(json.dumps(fit, indent=1) if arguments.json else "\n".join(render_fit(fit)))
    return 0


def load(arguments: argparse.Namespace) -> int:
    daemon = speaking(arguments)
    model_id = daemon.get(model_path(arguments.model))["id"]
    done = threading.Event()
    outcome: list[Any] = []

    def ask() -> None:
        try:
            loader = speaking(arguments)
            outcome.append(loader.post(model_path(model_id, "/load"), {}, patience=None))
        except (Unreachable, Refused) as error:
            outcome.append(error)
        finally:
            done.set()

    # A thread that an interrupt need not wait for: the daemon drops the load with its client.
    threading.Thread(target=ask, daemon=True).start()
    _watch(daemon, model_id, done)
    answer = outcome[0]
    if isinstance(answer, Unreachable | Refused):
        raise answer
    print(f"{model_id} is loaded: {size(answer['weights_bytes'])}")
    return 0


def _watch(daemon: Daemon, model_id: str, done: threading.Event) -> None:
    """Draw the bytes of a load until it is done; say why it waits, where it does."""
    progress, told = Progress(model_id, None), None
    drawn = False
    while not done.wait(LOOK):
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
    daemon = speaking(arguments)
    answer = daemon.post(model_path(arguments.model, "/unload"), {}, patience=None)
    print(f"{answer['id']} is unloaded: {size(answer['freed_bytes'])} freed")
    return 0


def pin(arguments: argparse.Namespace) -> int:
    answer = speaking(arguments).patch(model_path(arguments.model), {"pinned": True})
    print(f"{answer['id']} is pinned")
    return 0


def unpin(arguments: argparse.Namespace) -> int:
    answer = speaking(arguments).patch(model_path(arguments.model), {"pinned": False})
    print(f"{answer['id']} is not pinned")
    return 0
