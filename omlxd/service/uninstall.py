"""Removes the service, and on request also its configuration and data."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omlxd import instance
from omlxd.errors import ServiceFailed
from omlxd.service import control
from omlxd.service.exits import LAST_EXIT, STARTS
from omlxd.service.job import LOG, STDERR, STDOUT
from omlxd.service.supervisor import Clock, Supervisor

STATE_FILES = (
    *("guard.json", "models.json", "model-sizes.json", "keys.json", "keys.json.lock", "local.key"),
    *(instance.RECORD, LAST_EXIT, STARTS, control.INSTALL_RECORD, control.COMMAND_LOCK),
    instance.LOCK,
)
"""Every file that omlxd writes to the state folder. (The names of higher layers are repeated here;
a test compares them.) The lock file shows that the folder is ours. It is deleted last, so an
interrupted purge can be repeated."""


@dataclass(frozen=True, slots=True)
class PurgePaths:
    """What a purge may delete. Models are not in it: they are large, and other tools use them too.

    Attributes:
        config_file: None when the user has named another place for it.
        home: the folder given with ``--home``; None for the platform's own places.
    """

    config_file: Path | None
    state: Path
    cache: Path
    logs: Path
    home: Path | None


@dataclass(frozen=True, slots=True)
class Uninstalled:
    was_installed: bool
    removed: tuple[Path, ...]


def uninstall(places: Sequence[Supervisor], state: Path, clock: Clock) -> Uninstalled:
    """Remove the job from all ``places``.

    Raises ServiceFailed, also when the job has another data folder than ``state``.
    """
    with control.command_lock(state, clock):
        for supervisor in places:
            control.require_same_folder(supervisor, state)
        found = [s for s in places if s.definition.exists() or s.view().loaded]
        definitions = tuple(dict.fromkeys(s.definition for s in found if s.definition.exists()))
        for supervisor in found:
            supervisor.remove()
        if found:
            control.forget_installation(state)
    return Uninstalled(bool(found), definitions)


def purge(paths: PurgePaths, user_home: Path) -> tuple[Path, ...]:
    """Delete configuration, state, caches and logs. Returns what was deleted.

    Deletes nothing in a folder given with ``--home`` if no daemon has ever run on it.
    Raises ServiceFailed when a daemon still runs there, or the folder holds other files too.
    """
    running = instance.running(paths.state)
    if running is not None:
        raise ServiceFailed(
            f"omlxd still runs on {paths.state} (pid {running.pid}, started by hand); stop it first"
        )
    if paths.home is not None and (paths.home in user_home.parents or paths.home == user_home):
        raise ServiceFailed(
            f"--purge would delete folders in {paths.home}, which is not omlxd's alone; "
            "delete them by hand"
        )
    if paths.home is not None and not (paths.state / instance.LOCK).exists():
        return ()
    removed = [path for path in _logs(paths.logs) if _remove_file(path)]
    if paths.config_file is not None and _remove_file(paths.config_file):
        removed.append(paths.config_file)
    if paths.cache.is_dir() and not paths.cache.is_symlink():
        _remove_tree(paths.cache)
        removed.append(paths.cache)
    removed += [path for path in _state_files(paths.state) if _remove_file(path)]
    for empty in (paths.state, paths.logs, paths.home):
        if empty is not None and empty.is_dir() and not any(empty.iterdir()):
            empty.rmdir()
    return tuple(removed)


def _state_files(folder: Path) -> list[Path]:
    """Our files in ``folder``, the rest of interrupted writes, and copies of damaged files."""
    return [
        path
        for name in STATE_FILES
        for pattern in (f".{name}.*", f"{name}.damaged-*", name)
        for path in sorted(folder.glob(pattern))
    ]


def _logs(folder: Path) -> list[Path]:
    """Our own files in the log folder, which may hold other files too."""
    return sorted({*folder.glob(f"{LOG}*"), *folder.glob(STDOUT), *folder.glob(STDERR)})


def _remove_file(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ServiceFailed(f"cannot delete {path}: {error.strerror}") from error
    return True


def _remove_tree(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise ServiceFailed(f"cannot delete {error.filename}: {error.strerror}") from error
