"""Pulls a model from the hub into a folder: complete, checked and recorded, or not at all."""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlxd.cli.hub import RECORD, Hub, HubFile, NotPullable, Repository, wanted
from omlxd.cli.terminal import Progress
from omlxd.store import DamagedFile, read_json, write_json
from omlxd.units import MiB, format_bytes

PARTIAL = ".pull"
"""Folder inside the models folder for incomplete pulls. A scan skips hidden folders."""
SPARE = 256 * MiB
"""Disk space that a pull leaves free."""
_BLOCK = 4 * MiB


@dataclass(frozen=True, slots=True)
class Pulled:
    """``changed``: False when all files were there already."""

    folder: Path
    commit: str
    size: int
    changed: bool


def pull(
    hub: Hub,
    repository: Repository,
    models: Path,
    make_bar: Callable[[str, int, int], Progress],
) -> Pulled:
    """Download the model in ``repository`` to ``models``/org/name.

    An interrupted pull of the same commit is continued, and files that are missing in a folder of
    the same commit are fetched again. ``make_bar`` gets a label, the total size and the size that
    is there already. Raises NotPullable, OSError.
    """
    files = wanted(repository.files)
    size = sum(file.size for file in files)
    final = models / repository.name
    current = recorded_commit(final) == repository.commit
    if current and all(_has_size(final / file.name, file) for file in files):
        return Pulled(final, repository.commit, size, changed=False)
    _refuse_foreign(final)
    with _working_folder(models, repository) as work:
        if current:
            _keep_whole(final, files, work)
        _make_room(work, files)
        there = sum(_held(work, file) for file in files)
        bar = make_bar(repository.name, size, there)
        try:
            for file in files:
                _complete(hub, repository, file, work, bar)
        finally:
            bar.end()
        write_json(work / RECORD, _record(hub, repository, files))
        _move_in(work, final)
    return Pulled(final, repository.commit, size, changed=True)


def recorded_commit(folder: Path) -> str | None:
    """The commit that a pull recorded in ``folder``."""
    try:
        match read_json(folder / RECORD):
            case {"commit": str(commit)}:
                return commit
    except (DamagedFile, OSError):
        pass
    return None


def _has_size(path: Path, file: HubFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size


def _keep_whole(final: Path, files: tuple[HubFile, ...], work: Path) -> None:
    """Link the undamaged files of ``final``, a folder of the same commit, into ``work``."""
    for file in files:
        path = final / file.name
        if (work / file.name).exists() or path.is_symlink() or not path.is_file():
            continue
        # Some volumes have no links. On these the file is fetched again.
        with suppress(OSError):
            if _is_whole(path, file):
                os.link(path, work / file.name)


def _refuse_foreign(final: Path) -> None:
    if os.path.lexists(final) and recorded_commit(final) is None:
        raise NotPullable(
            f"{final} is there already and was not pulled by omlxd. Move it away first."
        )


@contextmanager
def _working_folder(models: Path, repository: Repository) -> Iterator[Path]:
    """A folder for this commit only, locked against a second pull."""
    work = models / PARTIAL / f"{repository.name.replace('/', '--')}--{repository.commit}"
    work.mkdir(parents=True, exist_ok=True)
    lock = work.with_name(f"{work.name}.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise NotPullable(f"{repository.name} is being pulled already.") from None
    try:
        yield work
    finally:
        if not work.exists():
            os.unlink(lock.name)
        lock.close()


def _make_room(work: Path, files: tuple[HubFile, ...]) -> None:
    needed = sum(file.size - min(_held(work, file), file.size) for file in files)
    free = shutil.disk_usage(work).free
    if needed + SPARE > free:
        raise NotPullable(
            f"The disk is too full: {format_bytes(needed)} are to come and {format_bytes(free)} "
            f"are free at {work.parent.parent} ({format_bytes(SPARE)} stay so)."
        )


def _held(work: Path, file: HubFile) -> int:
    for path in (work / file.name, _partial(work, file)):
        try:
            return path.stat().st_size
        except FileNotFoundError:
            continue
    return 0


def _partial(work: Path, file: HubFile) -> Path:
    return work / f"{file.name}.partial"


def _complete(hub: Hub, repository: Repository, file: HubFile, work: Path, bar: Progress) -> None:
    """Fetch the file, check it against the hub's size and hash, and give it its name."""
    if (work / file.name).exists():
        return  # only a checked file gets this name
    partial = _partial(work, file)
    hub.fetch(repository, file, partial, bar.add)
    if not _is_whole(partial, file):
        partial.unlink()
        raise NotPullable(
            f"{file.name} arrived damaged: its checksum is not what the hub says. It was deleted; "
            "run the same command again."
        )
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    partial.rename(work / file.name)


def _is_whole(path: Path, file: HubFile) -> bool:
    if path.stat().st_size != file.size:
        return False
    if file.sha256 is not None:
        return _digest(path, hashlib.sha256()) == file.sha256
    if file.blob is not None and len(file.blob) == 40:
        # The id that git gives to a blob; security does not depend on it.
        start = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
        return _digest(path, start) == file.blob
    return True


def _digest(path: Path, digest: Any) -> str:
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return str(digest.hexdigest())


def _record(hub: Hub, repository: Repository, files: tuple[HubFile, ...]) -> dict[str, Any]:
    return {
        "repository": repository.name,
        "commit": repository.commit,
        "endpoint": hub.endpoint,
        "pulled_at": int(time.time()),
        "files": {file.name: {"bytes": file.size, "sha256": file.sha256} for file in files},
    }


def _move_in(work: Path, final: Path) -> None:
    """Give the complete folder its name. A folder of an older commit is moved away first."""
    final.parent.mkdir(parents=True, exist_ok=True)
    old = work.with_name(f"{work.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    work.rename(final)
    shutil.rmtree(old, ignore_errors=True)
