"""``omlxd models pull`` and ``rm``: they change the models folder, whether a daemon runs or not."""

import argparse
import os
import sys
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from omlxd.cli.client import (
    Daemon,
    NotRunning,
    Refused,
    Unreachable,
    find_key,
    find_url,
    model_path,
    model_statuses,
)
from omlxd.cli.draw import size
from omlxd.cli.home import daemon_paths
from omlxd.cli.progress import Progress

RESCAN_LIMIT = 60.0
EXIT_NO_NETWORK = 69
EXIT_NO_ACCESS = 77
_USED = frozenset({"queued", "loading", "ready", "draining", "unloading"})


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
        return _failed(error)
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

    models = daemon_paths(arguments.home, os.environ).models
    pulled = pull(hub, repository, models, make_bar)
    verb = "is in" if pulled.news else "was already in"
    print(f"{name} {verb} {pulled.folder} ({size(pulled.size)}, commit {pulled.commit[:12]})")
    if pulled.news:
        _tell(arguments, None)
    return 0


def remove(arguments: argparse.Namespace) -> int:
    from omlxd.cli.models_folder import NotOurs, delete, find_own, size_of

    paths = daemon_paths(arguments.home, os.environ)
    try:
        folder = find_own(paths.models, arguments.model)
        _refuse_used(arguments, paths.state)
        question = f"Delete {folder} ({size(size_of(folder))})? [y/N] "
        if not arguments.yes and not _agreed(question):
            print("Nothing was deleted.")
            return 1
        _refuse_used(arguments, paths.state)
        delete(paths.models, folder)
    except NotOurs as error:
        print(f"omlxd: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        return _failed(error)
    print(f"{arguments.model} is deleted")
    if not _tell(arguments, arguments.model):
        _forget_on_disk(paths.state, arguments.model)
    return 0


def _failed(error: OSError) -> int:
    where = f": {error.filename}" if error.filename else "."
    print(f"omlxd: {error.strerror or error}{where}", file=sys.stderr)
    return 1


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        print("omlxd: say --yes to delete without being asked.", file=sys.stderr)
        return False
    return input(question).strip().lower() in ("y", "yes")


def _running(arguments: argparse.Namespace) -> Daemon | None:
    """None where no daemon runs, so that nothing is loaded. Raises Unreachable."""
    try:
        url = find_url(arguments.url, arguments.home, os.environ)
    except NotRunning:
        return None
    return Daemon(url, find_key(arguments.url, arguments.home, os.environ))


def _refuse_used(arguments: argparse.Namespace, state: Path) -> None:
    daemon = _running(arguments)
    if daemon is not None:
        refuse_used(model_statuses(daemon), arguments.model)
    elif state.exists() and (owner := state.stat().st_uid) != os.geteuid():
        # Its settings, written by root, would be closed to the daemon.
        raise Refused(f"{state} belongs to uid {owner}; run this as that user (sudo -u).")


def refuse_used(models: Collection[dict[str, Any]], name: str) -> None:
    """Raises Refused while ``name`` is in memory, or on its way there."""
    for model in models:
        if _same(model["id"], name) and model["state"] in _USED:
            raise Refused(
                f"{model['id']} is {model['state']}. First: omlxd models unload {model['id']}"
            )


def _same(one: str, other: str) -> bool:
    """Folders differ by more than the case of letters on a Mac."""
    return one.casefold() == other.casefold()


def _tell(arguments: argparse.Namespace, gone: str | None) -> bool:
    """Let the running daemon look, and forget ``gone``; False when none runs.

    One that is started later looks at its folders then.
    """
    try:
        daemon = _running(arguments)
        if daemon is None:
            return False
        found = daemon.post("/v1/models/rescan", {}, patience=RESCAN_LIMIT)
        if gone is not None:
            forget(daemon, gone, [*found["models"], *(broken["id"] for broken in found["broken"])])
    except (Unreachable, Refused) as error:
        print(f"omlxd: the running daemon was not told: {error}", file=sys.stderr)
    return True


class Patching(Protocol):
    """The part of ``Daemon`` that changes settings."""

    def patch(self, path: str, body: dict[str, Any]) -> Any: ...


def forget(daemon: Patching, name: str, left: Collection[str]) -> None:
    """Take back what was set for ``name``, unless another folder has a model of that name.

    What comes under the name later is another model. Raises Unreachable, Refused.
    """
    if any(_same(name, other) for other in left):
        return
    try:
        meant = daemon.patch(model_path(name), {})["id"]
    except Refused:
        return  # nothing was ever set
    if _same(name, meant):
        from omlxd.model_settings.options import ModelSettings

        keys = ["default", *(field.name for field in fields(ModelSettings))]
        daemon.patch(model_path(meant), dict.fromkeys(keys))


def _forget_on_disk(state: Path, name: str) -> None:
    from omlxd.model_settings.settings import FILE, without_model
    from omlxd.store import DamagedFile, read_json, write_json

    try:
        stored = read_json(state / FILE)
        kept = without_model(stored, name)
        if kept != stored:
            write_json(state / FILE, kept)
    except (OSError, DamagedFile) as error:
        print(f"omlxd: its settings were not forgotten: {error}", file=sys.stderr)
