"""The files that a purge deletes; it deletes nothing else."""

from pathlib import Path

import pytest

from omlxd import instance
from omlxd.api import key_file
from omlxd.enforcer import settings as guard_settings
from omlxd.errors import ServiceFailed
from omlxd.model_settings import settings
from omlxd.pool.measured_sizes import SIZES_FILE
from omlxd.service import control, exits
from omlxd.service.uninstall import STATE_FILES, PurgePaths, purge


def filled(home: Path, *files: str) -> PurgePaths:
    for name in files:
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("content")
    return PurgePaths(home / "config.toml", home / "state", home / "cache", home / "logs", home)


def left(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())


def test_a_folder_on_which_no_daemon_has_ever_run_is_kept_whole(tmp_path: Path) -> None:
    theirs = ["cache/precious.txt", "config.toml", "state/service.lock", "state/thesis.txt"]
    what = filled(tmp_path / "data", *theirs)
    assert purge(what, tmp_path / "user") == ()
    assert left(tmp_path / "data") == theirs


def test_of_the_state_only_our_own_files_go(tmp_path: Path) -> None:
    ours = [f"state/{name}" for name in STATE_FILES]
    odd = ["state/.guard.json.x1.tmp", "state/models.json.damaged-20260101-000000"]
    what = filled(tmp_path / "data", *ours, *odd, "config.toml", "cache/x/y", "state/thesis.txt")
    purge(what, tmp_path / "user")
    assert left(tmp_path / "data") == ["state/thesis.txt"]


def test_every_file_that_any_part_writes_to_the_state_is_known() -> None:
    written = {settings.FILE, SIZES_FILE, guard_settings.FILE, key_file.FILE, key_file.LOCAL_FILE}
    written |= {f"{key_file.FILE}.lock"}
    written |= {instance.RECORD, instance.LOCK, exits.LAST_EXIT, exits.STARTS}
    written |= {control.INSTALL_RECORD, control.COMMAND_LOCK}
    assert written == set(STATE_FILES)


def test_what_is_all_ours_goes_with_its_folders(tmp_path: Path) -> None:
    what = filled(tmp_path / "data", "state/omlxd.lock", "cache/x/y", "logs/omlxd.log.1")
    purge(what, tmp_path / "user")
    assert not (tmp_path / "data").exists()


def test_the_platform_s_own_places_are_ours_by_their_name(tmp_path: Path) -> None:
    found = filled(tmp_path / "omlxd", "config.toml", "state/keys.json")
    what = PurgePaths(found.config_file, found.state, found.cache, found.logs, home=None)
    purge(what, tmp_path / "user")
    assert left(tmp_path / "omlxd") == []


def test_a_purge_that_failed_half_way_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = filled(tmp_path / "data", *(f"state/{name}" for name in STATE_FILES))
    unlink = Path.unlink

    def refused(path: Path, missing_ok: bool = False) -> None:
        if path.name == STATE_FILES[-2]:
            raise PermissionError(13, "Permission denied")
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        with pytest.raises(ServiceFailed, match="cannot delete"):
            purge(what, tmp_path / "user")
    purge(what, tmp_path / "user")
    assert not (tmp_path / "data").exists()
