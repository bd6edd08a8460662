"""Whether a system daemon's account can use its files."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from omlxd.errors import ServiceFailed
from omlxd.service import access
from omlxd.service.access import ENTER, READ, WRITE, blocked, problems
from omlxd.service.install import prepare_folders
from omlxd.service.job import Account, JobSpec

STRANGER = Account("no-such-account", 54321, 54321, Path("/var/empty"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every account can reach; pytest's own folders are private."""
    path = Path(tempfile.mkdtemp(dir=os.path.realpath("/tmp")))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def made(path: Path, mode: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.chmod(mode)
    return path


def job(folder: Path, account: Account | None) -> JobSpec:
    return JobSpec(
        interpreter=str(made(folder / "env" / "python", 0o755)),
        config_file=folder / "config.toml",
        state=folder / "state",
        logs=folder / "logs",
        home=folder,
        account=account,
    )


@pytest.mark.parametrize(
    ("mode", "wanted", "works"),
    [
        (0o644, READ, True),
        (0o640, READ, False),
        (0o644, READ | WRITE, False),
        (0o646, READ | WRITE, True),
        (0o755, ENTER, True),
        (0o754, ENTER, False),
    ],
)
def test_a_stranger_gets_what_others_get(folder: Path, mode: int, wanted: int, works: bool) -> None:
    path = made(folder / "file", mode)
    assert blocked(path, STRANGER, wanted) == (None if works else path)


def test_the_group_counts_before_the_others(folder: Path) -> None:
    path = made(folder / "file", 0o604)
    member = replace(STRANGER, gid=path.stat().st_gid)
    assert blocked(path, member, READ) == path
    path.chmod(0o640)
    assert blocked(path, member, READ) is None


def test_a_closed_folder_on_the_way_is_named(folder: Path) -> None:
    path = made(folder / "a" / "b" / "file", 0o644)
    (folder / "a").chmod(0o700)
    assert blocked(path, STRANGER, READ) == folder / "a"
    assert blocked(folder / "absent", STRANGER, READ) == folder / "absent"


def test_an_agent_has_no_problems_with_its_own_files(folder: Path) -> None:
    assert problems(job(folder, None)) == []


def test_a_python_that_the_account_cannot_run_is_refused(folder: Path) -> None:
    """Also the interpreter to which an environment's link points."""
    described = job(folder, STRANGER)
    assert problems(described) == []
    behind = made(folder / "home" / "python3", 0o755)
    (folder / "home").chmod(0o750)
    Path(described.interpreter).unlink()
    Path(described.interpreter).symlink_to(behind)
    (text,) = problems(described)
    assert str(folder / "home") in text
    assert "cannot run" in text
    Path(described.interpreter).unlink()
    assert len(problems(described)) == 1


@pytest.mark.parametrize("which", ["state", "logs"])
def test_folders_and_files_of_another_account_are_named_with_the_remedy(
    folder: Path, which: str
) -> None:
    described = job(folder, STRANGER)
    made(folder / which / "keys.json", 0o600)
    (text,) = problems(described)
    assert f"sudo chown -R {STRANGER.name} {folder / which}" in text


def test_what_commands_and_launchd_made_as_root_is_fine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Account("me", os.getuid(), os.getgid(), folder)
    for name in ("service.lock", "service.json"):
        made(folder / "state" / name, 0o600)
    assert problems(job(folder, own)) == []
    monkeypatch.setattr(access, "_belongs", lambda path, account: path.name == "state")
    assert "service.json" in problems(job(folder, own))[0]


def test_a_configuration_that_the_account_cannot_read_is_named(folder: Path) -> None:
    described = job(folder, STRANGER)
    made(described.config_file, 0o600)
    (text,) = problems(described)
    assert "cannot read" in text
    described.config_file.chmod(0o644)
    assert problems(described) == []


def test_an_installation_for_another_account_over_old_files_stops_before_anything(
    folder: Path,
) -> None:
    described = job(folder, STRANGER)
    made(described.state / "last_exit.json", 0o600)
    made(described.logs / "omlxd.log", 0o600)
    made(described.config_file, 0o644)
    with pytest.raises(ServiceFailed, match=r"(?s)chown -R .*state.*and: .*chown -R .*logs"):
        prepare_folders(described)
