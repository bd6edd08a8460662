"""Checks, by owner and mode of each file, whether the account of a system daemon can use it.

Access control lists are ignored: on a Mac they usually allow more than the mode does.
"""

import os
import shlex
from pathlib import Path

from omlxd.service.control import COMMAND_LOCK, INSTALL_RECORD
from omlxd.service.job import STDERR, STDOUT, Account, JobSpec

READ, WRITE, ENTER = 4, 2, 1
EXECUTE = ENTER

_BY_ROOT = frozenset({INSTALL_RECORD, COMMAND_LOCK, STDOUT, STDERR})
"""Files that the service commands and launchd make in these folders; they may belong to root."""


def blocked(path: Path, account: Account, wanted: int) -> Path | None:
    """The first folder or file that denies ``account`` the ``wanted`` access to ``path``.

    ``wanted`` is a sum of READ, WRITE and ENTER or EXECUTE. None when the account has access.
    """
    groups = frozenset(os.getgrouplist(account.name, account.gid))
    for folder in reversed(path.parents):
        if not _allows(folder, account.uid, groups, ENTER):
            return folder
    return None if _allows(path, account.uid, groups, wanted) else path


def problems(job: JobSpec) -> list[str]:
    """The reasons why the account of ``job`` cannot run it, each with its remedy.

    An absent file is a problem only if it is the interpreter. An agent (which has no account of
    its own) has no problems.
    """
    account = job.account
    return [] if account is None else [*_interpreter(job, account), *_files(job, account)]


def _interpreter(job: JobSpec, account: Account) -> list[str]:
    # The link in the environment, and the installation to which it points.
    paths = (Path(job.interpreter), Path(os.path.realpath(job.interpreter)))
    for path in dict.fromkeys(paths):
        where = blocked(path, account, EXECUTE)
        if where is not None:
            return [
                f"{account.name} cannot run {path}: {_why(where)}. Install omlxd where that "
                "account can run it, such as in /opt or /usr/local, and use it from there"
            ]
    return []


def _files(job: JobSpec, account: Account) -> list[str]:
    found = []
    for folder in (job.state, job.logs):
        foreign = next((path for path in _inside(folder) if not _belongs(path, account)), None)
        if foreign is not None:
            command = f"sudo chown -R {account.name} {shlex.quote(str(folder))}"
            found.append(
                f"{foreign} belongs to another account than {account.name}, which the daemon is "
                f"to run as: {command}"
            )
        elif folder.exists() and (where := blocked(folder, account, READ | WRITE | ENTER)):
            found.append(f"{account.name} cannot use {folder}: {_why(where)}")
    config = job.config_file
    if config.exists() and (where := blocked(config, account, READ)):
        found.append(f"{account.name} cannot read {config}: {_why(where)}")
    return found


def _inside(folder: Path) -> list[Path]:
    return [folder, *sorted(folder.iterdir())] if folder.is_dir() else []


def _belongs(path: Path, account: Account) -> bool:
    try:
        owner = path.lstat().st_uid
    except FileNotFoundError:  # a running daemon has just renamed it
        return True
    return owner == account.uid or (owner == 0 and path.name in _BY_ROOT)


def _allows(path: Path, uid: int, groups: frozenset[int], wanted: int) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    if uid == 0:
        return True
    shift = 6 if found.st_uid == uid else 3 if found.st_gid in groups else 0
    return found.st_mode >> shift & wanted == wanted


def _why(where: Path) -> str:
    try:
        return f"{where} is closed to it (mode {where.stat().st_mode & 0o7777:04o})"
    except OSError as error:
        return f"{where}: {error.strerror}"
