"""``omlxd models pull`` and ``rm`` change the models folder, with or without a running daemon."""

import argparse
import contextlib
import os
import re
import shutil
import sys
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from omlxd.cli.client import (
    Daemon,
    NotRunning,
    Refused,
    Unreachable,
    daemon_paths,
    find_key,
    find_url,
    model_path,
    model_statuses,
)
from omlxd.cli.terminal import Progress, size

RESCAN_LIMIT = 60.0
EXIT_NO_NETWORK = 69
EXIT_NO_ACCESS = 77
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_IN_USE = frozenset({"queued", "loading", "ready", "draining", "unloading"})


class NotDeletable(Exception):
    """The model may not be deleted; the text is for the user."""


def pull_model(arguments: argparse.Namespace) -> int:
    # huggingface_hub reads it on import. With it, the hub is not told which program uses it.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from omlxd.cli.hub import NoAccess, NoHub, NotPullable, check_repository, check_revision

    try:
        name = check_repository(arguments.repository)
        revision = None if arguments.revision is None else check_revision(arguments.revision)
        return _pull(name, revision, arguments)
    except NotPullable as error:
        print(f"omlxd: {error}", file=sys.stderr)
        codes = {NoHub: EXIT_NO_NETWORK, NoAccess: EXIT_NO_ACCESS}
        return codes.get(type(error), 1)
    except OSError as error:
        return _failed(error)
    except KeyboardInterrupt:
        print("\nomlxd: stopped; the same command goes on from here.", file=sys.stderr)
        return 130


def _pull(name: str, revision: str | None, arguments: argparse.Namespace) -> int:
    from omlxd.cli.hub import Hub
    from omlxd.cli.pull import pull

    hub = Hub()
    repository = hub.look(name, revision)

    def make_bar(label: str, total: int, there: int) -> Progress:
        return Progress(label, total, done=there)

    models = daemon_paths(arguments.home, os.environ).models
    pulled = pull(hub, repository, models, make_bar)
    verb = "is in" if pulled.changed else "was already in"
    print(f"{name} {verb} {pulled.folder} ({size(pulled.size)}, commit {pulled.commit[:12]})")
    if pulled.changed:
        _notify_daemon(arguments, None)
    return 0


def remove(arguments: argparse.Namespace) -> int:
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
    except NotDeletable as error:
        print(f"omlxd: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        return _failed(error)
    print(f"{arguments.model} is deleted")
    if not _notify_daemon(arguments, arguments.model):
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
    """The local daemon. None when none runs; then no model is loaded. Raises Unreachable."""
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
        # The daemon could not read settings that root has written.
        raise Refused(f"{state} belongs to uid {owner}; run this as that user (sudo -u).")


def refuse_used(models: Collection[dict[str, Any]], name: str) -> None:
    """Raises Refused while ``name`` is loaded or loading."""
    for model in models:
        if _same(model["id"], name) and model["state"] in _IN_USE:
            raise Refused(
                f"{model['id']} is {model['state']}. First: omlxd models unload {model['id']}"
            )


def _same(one: str, other: str) -> bool:
    """Whether both names are one folder. On a Mac the case of letters does not count."""
    return one.casefold() == other.casefold()


def _notify_daemon(arguments: argparse.Namespace, gone: str | None) -> bool:
    """Let the running daemon scan its folders and forget ``gone``. False when no daemon runs.

    A daemon that starts later scans them at its start.
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


def forget(daemon: Daemon, name: str, left: Collection[str]) -> None:
    """Reset the settings of ``name``, unless another folder has a model with that name.

    A later model with this name must not get them. Raises Unreachable, Refused.
    """
    if any(_same(name, other) for other in left):
        return
    try:
        meant = daemon.patch(model_path(name), {})["id"]
    except Refused:
        return  # no setting was ever made
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


def find_own(models: Path, model_id: str) -> Path:
    """The folder of ``model_id`` below ``models``. Raises NotDeletable."""
    if not _ID.fullmatch(model_id):
        raise NotDeletable(
            f"'{model_id}' is not the id of a model; `omlxd models list` shows them."
        )
    folder = models / model_id
    if not os.path.lexists(folder):
        raise NotDeletable(
            f"There is no {folder}. Models in other folders, such as the Hugging Face cache, are "
            "deleted where they are."
        )
    real_root = models.resolve()
    for part in (folder.parent, folder):
        if part != models and part.is_symlink():
            raise NotDeletable(f"{part} is a link to elsewhere. Delete it by hand.")
    if not folder.is_dir() or real_root not in folder.resolve().parents:
        raise NotDeletable(f"{folder} is not a folder of its own. Delete it by hand.")
    if not (folder / "config.json").exists() and any(p.is_dir() for p in folder.iterdir()):
        raise NotDeletable(f"{folder} is no model but holds others. Name one of them.")
    return folder


def size_of(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def delete(models: Path, folder: Path) -> None:
    """Rename the folder, then delete it, so that a half-deleted folder is never seen as a model."""
    doomed = models / f".deleted-{os.getpid()}-{folder.name}"
    folder.rename(doomed)
    shutil.rmtree(doomed)
    if folder.parent != models:
        with contextlib.suppress(OSError):  # other models of the same organisation
            folder.parent.rmdir()
