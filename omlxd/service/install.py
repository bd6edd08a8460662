"""Installs the job so that it runs and is healthy, or leaves everything as it was."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import assert_never

import structlog

from omlxd.errors import ServiceFailed
from omlxd.instance import Healthy, InstanceRecord
from omlxd.service import access
from omlxd.service.control import InstallRecord, command_lock, may_be_job, restart_loaded
from omlxd.service.definition import parse_definition
from omlxd.service.exits import forget_starts
from omlxd.service.job import JobSpec
from omlxd.service.supervisor import Clock, JobView, Supervisor
from omlxd.service.watch import Observation, Watch
from omlxd.store import PRIVATE, write_atomically

log = structlog.get_logger(__name__)

DEFINITION_MODE = 0o644
"""launchd refuses a definition that other users can write."""

STARTER_CONFIG = """\
# The configuration of omlxd. Everything has a default; an empty file is fine.
"""


class InstallAction(Enum):
    """The work that an installation must do."""

    KEEP = "keep"
    """The same job runs and is healthy: change nothing."""
    RESTART = "restart"
    """The same job is loaded, but it is unhealthy, stopped, or runs another version."""
    LOAD = "load"
    """The job is not loaded, or its definition differs."""


@dataclass(frozen=True, slots=True)
class Installed:
    action: InstallAction
    record: InstanceRecord


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """What to install.

    Attributes:
        definition: the bytes of the plist or unit.
        version: of the installing omlxd.
        others: the other places in which the same job could run.
        restart: restart even a healthy job, because its files were replaced while it ran.
    """

    job: JobSpec
    definition: bytes
    version: str
    others: Sequence[Supervisor] = ()
    restart: bool = False


def choose_action(
    *, loaded: bool, same: bool, version: str, running: Healthy | None, restart: bool = False
) -> InstallAction:
    """Pure. ``same``: the definition on the disk is the one to install."""
    if not loaded or not same:
        return InstallAction.LOAD
    current = running is not None and running.version == version
    return InstallAction.KEEP if current and not restart else InstallAction.RESTART


def install(
    supervisor: Supervisor, request: InstallRequest, watch: Watch, clock: Clock
) -> Installed:
    """Write the definition, load it, and wait until the new instance answers.

    When that fails, the previous definition and job are restored. Raises ServiceFailed.
    """
    prepare_folders(request.job)
    with command_lock(watch.state, clock, installs=True):
        previous = _read(supervisor.definition)
        view, seen = supervisor.view(), watch.observe()
        action = choose_action(
            loaded=view.loaded,
            same=previous == request.definition,
            version=request.version,
            running=_running(seen, view),
            restart=request.restart,
        )
        if action is InstallAction.KEEP:
            assert seen.record is not None
            record = seen.record
        else:
            before = _before_change(supervisor, request, watch, previous)
            record = _change(supervisor, request, watch, before, action)
        InstallRecord(
            domain=supervisor.domain,
            definition=str(supervisor.definition),
            interpreter=request.job.interpreter,
            version=request.version,
        ).write(watch.state)
    log.info("service_installed", action=action.value, where=supervisor.name, pid=record.pid)
    return Installed(action, record)


def prepare_folders(job: JobSpec) -> None:
    """Make the folders and the (empty) configuration of the job. Existing ones stay as they are.

    Raises ServiceFailed when one cannot be made, or the account of ``job`` cannot use it.
    """
    try:
        for folder in (job.state, job.logs, job.config_file.parent):
            _make_folder(folder, job)
        if not job.config_file.exists():
            write_atomically(job.config_file, STARTER_CONFIG.encode(), PRIVATE)
            _give_to_account(job.config_file, job)
        problems = access.problems(job)
    except OSError as error:
        raise ServiceFailed(f"cannot prepare {error.filename}: {error.strerror}") from error
    if problems:
        raise ServiceFailed("not installed: " + "\nand: ".join(problems))


@dataclass(frozen=True, slots=True)
class _Previous:
    """``loaded``: the places that had the job; ``watch``: watches the data folder of that job."""

    definition: bytes | None
    loaded: tuple[Supervisor, ...]
    watch: Watch


def _before_change(
    supervisor: Supervisor, request: InstallRequest, watch: Watch, definition: bytes | None
) -> _Previous:
    parsed = None if definition is None else parse_definition(definition)
    state = None if parsed is None else parsed.state
    return _Previous(
        definition=definition,
        loaded=tuple(place for place in (supervisor, *request.others) if place.view().loaded),
        watch=watch if state is None else watch.at(state),
    )


def _change(
    supervisor: Supervisor,
    request: InstallRequest,
    watch: Watch,
    previous: _Previous,
    action: InstallAction,
) -> InstanceRecord:
    try:
        forget_starts(watch.state)
        for other in request.others:
            other.unload()
        match action:
            case InstallAction.LOAD:
                before = watch.baseline()
                _write(supervisor.definition, request)
                supervisor.load()
                return watch.until_up(before, supervisor)
            case InstallAction.RESTART:
                return restart_loaded(supervisor, watch)
            case InstallAction.KEEP:
                raise AssertionError("nothing to change")
            case _:
                assert_never(action)
    except (ServiceFailed, OSError, KeyboardInterrupt) as failure:
        restored = _roll_back(supervisor, request, previous)
        if isinstance(failure, KeyboardInterrupt):
            raise
        raise ServiceFailed(f"{failure}\n{restored}") from failure


def _roll_back(supervisor: Supervisor, request: InstallRequest, previous: _Previous) -> str:
    """Restore the previous state. Returns the result in words, also when the supervisor fails.

    Without it launchd would start a failing job every ten seconds.
    """
    log.warning("install_rolled_back", where=supervisor.name, had_job=bool(previous.loaded))
    try:
        if previous.definition is None:
            supervisor.remove()
            return "Nothing was installed."
        if previous.definition == request.definition and previous.loaded == (supervisor,):
            return "The definition was left as it is."
        write_atomically(supervisor.definition, previous.definition, DEFINITION_MODE)
        if supervisor not in previous.loaded:
            supervisor.unload()
        if not previous.loaded:
            return "The previous definition was restored; it was not running."
        forget_starts(previous.watch.state)
        before = previous.watch.baseline()
        # The job may have been loaded in two places; only one of them can run.
        previous.loaded[0].load()
        record = previous.watch.until_up(before, previous.loaded[0])
    except (ServiceFailed, OSError) as error:
        return f"Restoring the previous service failed as well: {error}"
    return f"The previous service was restored and runs (pid {record.pid})."


def _write(path: Path, request: InstallRequest) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        write_atomically(path, request.definition, DEFINITION_MODE)
    except OSError as error:
        raise ServiceFailed(f"cannot write {path}: {error.strerror}") from error


def _running(seen: Observation, view: JobView) -> Healthy | None:
    if seen.record is None or not may_be_job(view, seen.record):
        return None
    match seen.health:
        case Healthy(instance_id) as health if instance_id == seen.record.instance_id:
            return health
        case _:
            return None


def _make_folder(folder: Path, job: JobSpec) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        _give_to_account(path, job)


def _give_to_account(path: Path, job: JobSpec) -> None:
    """root makes the files of a system daemon; they belong to the daemon's account."""
    if job.account is not None:
        os.chown(path, job.account.uid, job.account.gid, follow_symlinks=False)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ServiceFailed(f"cannot read {path}: {error.strerror}") from error
