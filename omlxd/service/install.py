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
from omlxd.service import access, restarts
from omlxd.service.control import may_be_job, restart_loaded
from omlxd.service.definition import read_back
from omlxd.service.job import JobSpec
from omlxd.service.remembered import StateFile, one_at_a_time, remember
from omlxd.service.supervisor import JobView, Pace, Supervisor
from omlxd.service.watch import Look, Watch
from omlxd.store import PRIVATE, write_atomically

log = structlog.get_logger(__name__)

DEFINITION_MODE = 0o644
"""launchd refuses a definition that others may write to."""

STARTER_CONFIG = """\
# The configuration of omlxd. Everything has a default; an empty file is fine.
"""


class Course(Enum):
    """What an installation has to do."""

    KEEP = "keep"
    """The same job runs, healthy: nothing."""
    RESTART = "restart"
    """The same job is loaded, but ill, stopped, or of an older version."""
    LOAD = "load"
    """Not loaded, or another definition."""


@dataclass(frozen=True, slots=True)
class Installed:
    course: Course
    record: InstanceRecord


@dataclass(frozen=True, slots=True)
class Offer:
    """What is to be installed.

    Attributes:
        definition: the bytes of the plist or unit.
        version: of the installing omlxd.
        others: the same job in places where it must not run as well.
        restart: even what is healthy, because its files were replaced under it.
    """

    job: JobSpec
    definition: bytes
    version: str
    others: Sequence[Supervisor] = ()
    restart: bool = False


def course(
    *, loaded: bool, same: bool, version: str, running: Healthy | None, restart: bool = False
) -> Course:
    """Pure. ``same``: the definition on disk is the one to install."""
    if not loaded or not same:
        return Course.LOAD
    current = running is not None and running.version == version
    return Course.KEEP if current and not restart else Course.RESTART


def install(supervisor: Supervisor, offer: Offer, watch: Watch, pace: Pace) -> Installed:
    """Write, load, and wait until the new instance answers.

    Raises ServiceFailed with the reason, after the previous definition and job were restored.
    """
    prepare_folders(offer.job)
    with one_at_a_time(watch.state, pace, installs=True):
        previous = _read(supervisor.definition)
        view, look = supervisor.view(), watch.look()
        chosen = course(
            loaded=view.loaded,
            same=previous == offer.definition,
            version=offer.version,
            running=_running(look, view),
            restart=offer.restart,
        )
        if chosen is Course.KEEP:
            assert look.record is not None
            record = look.record
        else:
            before = _look_back(supervisor, offer, watch, previous)
            record = _change(supervisor, offer, watch, before, chosen)
        remember(
            watch.state,
            StateFile(
                domain=supervisor.domain,
                definition=str(supervisor.definition),
                interpreter=offer.job.interpreter,
                version=offer.version,
            ),
        )
    log.info("service_installed", course=chosen.value, where=supervisor.name, pid=record.pid)
    return Installed(chosen, record)


def prepare_folders(job: JobSpec) -> None:
    """The folders and the (empty) configuration that the job needs; what exists stays as it is.

    Raises ServiceFailed when one cannot be made, or the account of ``job`` cannot use it.
    """
    try:
        for folder in (job.state, job.logs, job.config_file.parent):
            _make_for(folder, job)
        if not job.config_file.exists():
            write_atomically(job.config_file, STARTER_CONFIG.encode(), PRIVATE)
            _give(job.config_file, job)
        wrong = access.problems(job)
    except OSError as error:
        raise ServiceFailed(f"cannot prepare {error.filename}: {error.strerror}") from error
    if wrong:
        raise ServiceFailed("not installed: " + "\nand: ".join(wrong))


@dataclass(frozen=True, slots=True)
class _Previous:
    """``loaded``: where the job was; ``watch``: looks at the data folder that it had."""

    definition: bytes | None
    loaded: tuple[Supervisor, ...]
    watch: Watch


def _look_back(
    supervisor: Supervisor, offer: Offer, watch: Watch, definition: bytes | None
) -> _Previous:
    written = None if definition is None else read_back(definition)
    state = None if written is None else written.state
    return _Previous(
        definition=definition,
        loaded=tuple(place for place in (supervisor, *offer.others) if place.view().loaded),
        watch=watch if state is None else watch.at(state),
    )


def _change(
    supervisor: Supervisor,
    offer: Offer,
    watch: Watch,
    previous: _Previous,
    chosen: Course,
) -> InstanceRecord:
    try:
        restarts.forget(watch.state)
        for other in offer.others:
            other.unload()
        match chosen:
            case Course.LOAD:
                before = watch.before()
                _write(supervisor.definition, offer)
                supervisor.load()
                return watch.until_up(before, supervisor)
            case Course.RESTART:
                return restart_loaded(supervisor, watch)
            case Course.KEEP:
                raise AssertionError("nothing to change")
            case _:
                assert_never(chosen)
    except (ServiceFailed, OSError, KeyboardInterrupt) as failure:
        restored = _roll_back(supervisor, offer, previous)
        if isinstance(failure, KeyboardInterrupt):
            raise
        raise ServiceFailed(f"{failure}\n{restored}") from failure


def _roll_back(supervisor: Supervisor, offer: Offer, previous: _Previous) -> str:
    """Restore what was there; what became of it, in words. Never raises for the supervisor's sake.

    Without it a job that fails with a non-zero code would be started every ten seconds.
    """
    log.warning("install_rolled_back", where=supervisor.name, had_job=bool(previous.loaded))
    try:
        if previous.definition is None:
            supervisor.remove()
            return "Nothing was installed."
        if previous.definition == offer.definition and previous.loaded == (supervisor,):
            return "The definition was left as it is."
        write_atomically(supervisor.definition, previous.definition, DEFINITION_MODE)
        if supervisor not in previous.loaded:
            supervisor.unload()
        if not previous.loaded:
            return "The previous definition was restored; it was not running."
        restarts.forget(previous.watch.state)
        before = previous.watch.before()
        # Where it was in two places, one of them can run.
        previous.loaded[0].load()
        record = previous.watch.until_up(before, previous.loaded[0])
    except (ServiceFailed, OSError) as error:
        return f"Restoring the previous service failed as well: {error}"
    return f"The previous service was restored and runs (pid {record.pid})."


def _write(path: Path, offer: Offer) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        write_atomically(path, offer.definition, DEFINITION_MODE)
    except OSError as error:
        raise ServiceFailed(f"cannot write {path}: {error.strerror}") from error


def _running(look: Look, view: JobView) -> Healthy | None:
    if look.record is None or not may_be_job(view, look.record):
        return None
    match look.health:
        case Healthy(instance_id) as health if instance_id == look.record.instance_id:
            return health
        case _:
            return None


def _make_for(folder: Path, job: JobSpec) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        _give(path, job)


def _give(path: Path, job: JobSpec) -> None:
    """A system daemon's files belong to its account, though root makes them."""
    if job.account is not None:
        os.chown(path, job.account.uid, job.account.gid, follow_symlinks=False)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ServiceFailed(f"cannot read {path}: {error.strerror}") from error
