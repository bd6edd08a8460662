"""Takes the service out; the user's configuration and data stay unless they are to go too."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omlxd import instance
from omlxd.errors import ServiceFailed
from omlxd.service import control, last_exit, remembered, restarts
from omlxd.service.names import LOG, STDERR, STDOUT
from omlxd.service.supervisor import Pace, Supervisor

STATE_FILES = (
    *("guard.json", "models.json", "model-sizes.json", "keys.json", "keys.json.lock", "local.key"),
    *(instance.RECORD, last_exit.NAME, restarts.NAME, remembered.NAME, remembered.LOCK),
    instance.LOCK,
)
"""Everything that is ever written to the state folder (names are retyped where the layer is above
ours; a test compares them). The sign that it is ours goes last, so that
a purge that was interrupted can be made again."""


@dataclass(frozen=True, slots=True)
class Belongings:
    """What a purge may delete. Models never are: they are large, and often other tools' too.

    Attributes:
        config_file: None when it lies at a place of the user's own choosing.
        home: the folder given with ``--home``, None for the platform's own places.
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


def uninstall(places: Sequence[Supervisor], state: Path, pace: Pace) -> Uninstalled:
    """Remove the job from every place it may be in.

    Raises ServiceFailed, also when it has another data folder than ``state``.
    """
    with remembered.one_at_a_time(state, pace):
        for supervisor in places:
            control.demand_same_folder(supervisor, state)
        found = [s for s in places if s.definition.exists() or s.view().loaded]
        definitions = tuple(dict.fromkeys(s.definition for s in found if s.definition.exists()))
        for supervisor in found:
            supervisor.remove()
        if found:
            remembered.forget(state)
    return Uninstalled(bool(found), definitions)


def purge(what: Belongings, user_home: Path) -> tuple[Path, ...]:
    """Delete configuration, state, caches and logs; what was deleted.

    In a folder given with ``--home`` nothing, unless a daemon has ever run on it.
    Raises ServiceFailed when a daemon still runs there, or the folder is not ours alone.
    """
    running = instance.running(what.state)
    if running is not None:
        raise ServiceFailed(
            f"omlxd still runs on {what.state} (pid {running.pid}, started by hand); stop it first"
        )
    if what.home is not None and (what.home in user_home.parents or what.home == user_home):
        raise ServiceFailed(
            f"--purge would delete folders in {what.home}, which is not omlxd's alone; "
            "delete them by hand"
        )
    if what.home is not None and not (what.state / instance.LOCK).exists():
        return ()
    removed = [path for path in _logs(what.logs) if _remove_file(path)]
    if what.config_file is not None and _remove_file(what.config_file):
        removed.append(what.config_file)
    if what.cache.is_dir() and not what.cache.is_symlink():
        _remove_tree(what.cache)
        removed.append(what.cache)
    removed += [path for path in _state_files(what.state) if _remove_file(path)]
    for empty in (what.state, what.logs, what.home):
        if empty is not None and empty.is_dir() and not any(empty.iterdir()):
            empty.rmdir()
    return tuple(removed)


def _state_files(folder: Path) -> list[Path]:
    """With what an interrupted write left of them, and what was kept because it was damaged."""
    return [
        path
        for name in STATE_FILES
        for pattern in (f".{name}.*", f"{name}.damaged-*", name)
        for path in sorted(folder.glob(pattern))
    ]


def _logs(folder: Path) -> list[Path]:
    """Our own files of the log folder; a shared one may hold others."""
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
