"""``omlxd models``: list, load, unload, pin, pull and delete models, and ask whether one fits."""

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from omlxd.cli.client import (
    Daemon,
    Refused,
    Unreachable,
    add_daemon_arguments,
    complain,
    find_key,
    find_url,
    speaking,
)
from omlxd.cli.draw import size
from omlxd.cli.home import daemon_places
from omlxd.cli.models_text import render_fit, render_models
from omlxd.cli.progress import Progress

LOOK = 0.25
"""Seconds between two looks at a load."""
RESCAN_LIMIT = 60.0
EXIT_NO_NETWORK = 69
EXIT_NO_ACCESS = 77
_USED = frozenset({"queued", "loading", "ready", "draining", "unloading"})


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


def _path(model: str, rest: str = "") -> str:
    return f"/v1/models/{quote(model, safe='/')}{rest}"


def show_list(arguments: argparse.Namespace) -> int:
    models = _statuses(speaking(arguments))
    if arguments.json:
        print(json.dumps(models, indent=1))
    else:
        print("\n".join(render_models(models)))
    return 0


def _statuses(daemon: Daemon) -> list[dict[str, Any]]:
    status = daemon.get("/status")
    if not isinstance(status, dict) or not isinstance(status.get("models"), list):
        raise Unreachable(f"something else than omlxd answers at {daemon.url}.")
    return list(status["models"])


def show_fit(arguments: argparse.Namespace) -> int:
    query = f"?concurrency={arguments.concurrency}"
    if arguments.context is not None:
        query += f"&context={arguments.context}"
    fit = speaking(arguments).get(_path(arguments.model, "/fit") + query)
    print(json.dumps(fit, indent=1) if arguments.json else "\n".join(render_fit(fit)))
    return 0


def load(arguments: argparse.Namespace) -> int:
    daemon = speaking(arguments)
    model_id = daemon.get(_path(arguments.model))["id"]
    done = threading.Event()
    outcome: list[Any] = []

    def ask() -> None:
        try:
            loader = speaking(arguments)
            outcome.append(loader.post(_path(model_id, "/load"), {}, patience=None))
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
        model = next((m for m in _statuses(daemon) if m["id"] == model_id), None)
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
    answer = daemon.post(_path(arguments.model, "/unload"), {}, patience=None)
    print(f"{answer['id']} is unloaded: {size(answer['freed_bytes'])} freed")
    return 0


def pin(arguments: argparse.Namespace) -> int:
    answer = speaking(arguments).patch(_path(arguments.model), {"pinned": True})
    print(f"{answer['id']} is pinned")
    return 0


def unpin(arguments: argparse.Namespace) -> int:
    answer = speaking(arguments).patch(_path(arguments.model), {"pinned": False})
    print(f"{answer['id']} is not pinned")
    return 0


def pull_model(arguments: argparse.Namespace) -> int:
    from omlxd.cli.hub_files import NotPullable, check_repository, check_revision

    try:
        name = check_repository(arguments.repository)
        revision = None if arguments.revision is None else check_revision(arguments.revision)
        return _pull(name, revision, arguments)
    except NotPullable as error:
        code = {"NoHub": EXIT_NO_NETWORK, "NoAccess": EXIT_NO_ACCESS}.get(type(error).__name__, 1)
        print(f"omlxd: {error}", file=sys.stderr)
        return code
    except OSError as error:
        print(f"omlxd: {error.strerror or error}: {error.filename or ''}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nomlxd: stopped; the same command goes on from here.", file=sys.stderr)
        return 130


def _pull(name: str, revision: str | None, arguments: argparse.Namespace) -> int:
    # Read when huggingface_hub is imported: nobody is told which program starts this one.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from omlxd.cli.hub import Hub
    from omlxd.cli.pull import pull

    hub = Hub()
    repository = hub.look(name, revision)

    def make_bar(label: str, total: int, there: int) -> Progress:
        return Progress(label, total, done=there)

    pulled = pull(hub, repository, _own_models(arguments), make_bar)
    verb = "is in" if pulled.news else "was already in"
    print(f"{name} {verb} {pulled.folder} ({size(pulled.size)}, commit {pulled.commit[:12]})")
    if pulled.news:
        _ask_for_rescan(arguments)
    return 0


def _ask_for_rescan(arguments: argparse.Namespace) -> None:
    """Nothing to do when no daemon runs: it looks at its folders when it starts."""
    try:
        url = find_url(arguments.url, arguments.home, os.environ)
    except Unreachable:
        return
    try:
        key = find_key(arguments.url, arguments.home, os.environ)
        Daemon(url, key).post("/v1/models/rescan", {}, patience=RESCAN_LIMIT)
    except (Unreachable, Refused) as error:
        print(f"omlxd: the running daemon was not told: {error}", file=sys.stderr)


def _own_models(arguments: argparse.Namespace) -> Path:
    return daemon_places(arguments.home, os.environ).models


def remove(arguments: argparse.Namespace) -> int:
    from omlxd.cli.models_folder import NotOurs, delete, find_own, size_of

    models = _own_models(arguments)
    try:
        folder = find_own(models, arguments.model)
        _refuse_used(arguments)
        question = f"Delete {folder} ({size(size_of(folder))})? [y/N] "
        if not arguments.yes and not _agreed(question):
            print("Nothing was deleted.")
            return 1
        _refuse_used(arguments)
        delete(models, folder)
    except NotOurs as error:
        print(f"omlxd: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"omlxd: {error.strerror or error}: {error.filename or ''}", file=sys.stderr)
        return 1
    print(f"{arguments.model} is deleted")
    _ask_for_rescan(arguments)
    return 0


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        print("omlxd: say --yes to delete without being asked.", file=sys.stderr)
        return False
    return input(question).strip().lower() in ("y", "yes")


def _refuse_used(arguments: argparse.Namespace) -> None:
    """Raises Refused while the running daemon has it in memory, or on its way there."""
    try:
        url = find_url(arguments.url, arguments.home, os.environ)
    except Unreachable:
        return  # no daemon, so nothing is loaded
    daemon = Daemon(url, find_key(arguments.url, arguments.home, os.environ))
    for model in _statuses(daemon):
        if model["id"] == arguments.model and model["state"] in _USED:
            raise Refused(
                f"{model['id']} is {model['state']}. First: omlxd models unload {model['id']}"
            )
