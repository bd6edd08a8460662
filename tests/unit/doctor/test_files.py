"""The doctor's findings about folders and files."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from omlxd.api.key_file import Scope, add_key, path_in
from omlxd.config.paths import Paths, standard_paths
from omlxd.doctor import files
from omlxd.doctor.files import (
    PRIVACY,
    Roots,
    check_account,
    check_cache,
    check_keys,
    check_private,
    check_roots,
    check_usable,
)
from omlxd.doctor.finding import Finding, Verdict
from omlxd.service import access
from omlxd.service.job import Account, JobSpec

ME = Account("me", os.getuid(), os.getgid(), Path("/home/me"))
STRANGER = Account("no-such-account", 54321, 54321, Path("/var/empty"))


@pytest.fixture
def here(tmp_path: Path) -> Paths:
    found = standard_paths(tmp_path, None)
    for folder in (found.state, found.logs):
        folder.mkdir(mode=0o700)
    return found


def roots(*paths: Path, configured: bool = True, platform: str = "darwin") -> list[Finding]:
    home = paths[0].parent
    return check_roots(Roots(paths, () if configured else paths, 5.0, platform, home))


def test_an_absent_folder_matters_when_it_was_named(tmp_path: Path) -> None:
    named, none = roots(tmp_path / "gone")
    assert (named.verdict, none.verdict) == (Verdict.WARN, Verdict.WARN)
    usual, none = roots(tmp_path / "gone", configured=False)
    assert usual.verdict is Verdict.OK
    assert none.remedy == f"put one into {tmp_path / 'gone'}"


def test_a_file_in_place_of_a_folder_fails(tmp_path: Path) -> None:
    file = tmp_path / "models"
    file.touch()
    assert roots(file)[0].verdict is Verdict.FAIL


def test_a_broken_model_is_named_with_its_file(tmp_path: Path) -> None:
    model = tmp_path / "models" / "half"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "llama"}')
    (model / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    finding = roots(tmp_path / "models")[0]
    assert finding.verdict is Verdict.WARN
    assert "half is broken (model.safetensors" in finding.text


def test_folders_that_macos_asks_for_get_the_hint_and_only_there(tmp_path: Path) -> None:
    folder = tmp_path / "Documents" / "models"
    folder.mkdir(parents=True)
    home = Roots([folder], [folder], 5.0, "darwin", tmp_path)
    hinted = check_roots(home)[0]
    assert (hinted.verdict, hinted.remedy) == (Verdict.WARN, PRIVACY)
    assert check_roots(Roots([folder], [folder], 5.0, "linux", tmp_path))[0].verdict is Verdict.OK


def test_private_files_are_fine(here: Paths) -> None:
    (here.state / "x.json").touch(0o600)
    here.config_file.touch(0o644)
    assert [finding.verdict for finding in check_private(here)] == [Verdict.OK]


@pytest.mark.parametrize(
    ("name", "mode", "verdict"),
    [
        ("state", 0o770, Verdict.FAIL),
        ("logs", 0o777, Verdict.FAIL),
        ("state/x.json", 0o644, Verdict.WARN),
        ("logs/omlxd.log", 0o640, Verdict.WARN),
        ("config.toml", 0o666, Verdict.FAIL),
    ],
)
def test_what_others_can_open_is_named_with_the_remedy(
    here: Paths, tmp_path: Path, name: str, mode: int, verdict: Verdict
) -> None:
    path = tmp_path / name
    if not path.exists():
        path.touch()
    path.chmod(mode)
    (finding,) = check_private(here)
    assert finding.verdict is verdict
    assert str(path) in finding.text
    assert finding.remedy is not None
    assert finding.remedy.startswith("chmod")


def test_keys_are_named_and_a_key_file_that_is_not_trusted_fails(here: Paths) -> None:
    assert check_keys(here).text.startswith("none")
    key = add_key(path_in(here.state), "app", Scope.INFERENCE, 0.0)
    found = check_keys(here)
    assert found.text == "app (inference)"
    assert key not in found.text
    path_in(here.state).chmod(0o644)
    assert check_keys(here).verdict is Verdict.FAIL


def test_keys_are_judged_for_the_account_that_the_daemon_runs_as(here: Paths) -> None:
    """Not for root, because root checks the daemon of the whole Mac."""
    add_key(path_in(here.state), "app", Scope.INFERENCE, 0.0)
    assert check_keys(here, ME).text == "app (inference)"
    found = check_keys(here, STRANGER)
    assert found.verdict is Verdict.FAIL
    assert f"sudo chown {STRANGER.uid} " in found.text


def test_what_the_account_cannot_use_fails_although_who_looks_can(
    here: Paths, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    folder.mkdir(mode=0o700)
    mine = check_roots(Roots([folder], [folder], 5.0, "darwin", tmp_path, ME))[0]
    assert mine.verdict is Verdict.OK
    theirs = check_roots(Roots([folder], [folder], 5.0, "darwin", tmp_path, STRANGER))[0]
    assert theirs.verdict is Verdict.FAIL
    assert "no-such-account cannot read" in theirs.text
    assert check_cache(here.cache, STRANGER).verdict is Verdict.FAIL
    job = JobSpec("/bin/sh", here.config_file, here.state, here.logs, account=STRANGER)
    assert [finding.name for finding in check_account(job)] == ["account", "account"]
    assert check_account(replace(job, account=None)) == []


def closed_to_us(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """The same as for a user who is not root."""
    monkeypatch.setattr(os, "access", lambda path, wanted: Path(path) not in paths)


@pytest.mark.parametrize("name", ["state", "logs"])
def test_a_folder_of_ours_that_cannot_be_written_fails_as_serve_does(
    here: Paths, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert check_usable(here) == []
    closed_to_us(monkeypatch, here.state.with_name(name))
    (finding,) = check_usable(here)
    assert finding.verdict is Verdict.FAIL
    assert finding.text == f"{here.state.with_name(name)}: cannot be written"


def test_a_folder_that_is_yet_to_be_made_is_looked_for_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_usable(standard_paths(tmp_path / "new", None)) == []
    closed_to_us(monkeypatch, tmp_path)
    found = check_usable(standard_paths(tmp_path / "new", None))
    assert len(found) == 2
    assert str(tmp_path) in (found[0].remedy or "")


def test_a_file_in_the_way_of_a_folder_of_ours_fails(here: Paths) -> None:
    here.logs.rmdir()
    here.logs.touch()
    assert [finding.verdict for finding in check_usable(here)] == [Verdict.FAIL]


def test_a_file_that_another_user_left_among_ours_fails(
    here: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = here.state / "omlxd.lock"
    lock.touch(0o600)
    closed_to_us(monkeypatch, lock)
    assert check_usable(here) == [], "our own can be made writable or replaced"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    (finding,) = check_usable(here)
    assert str(lock) in finding.text
    assert (finding.remedy or "").startswith("sudo chown -R")


def test_a_file_that_a_running_daemon_renames_meanwhile_is_nothing(
    here: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_files", lambda folder: [folder / ".guard.json.x.tmp"])
    assert check_usable(here) == []
    monkeypatch.setattr(access, "_inside", lambda folder: [folder / ".guard.json.x.tmp"])
    job = JobSpec("/bin/sh", here.config_file, here.state, here.logs, account=ME)
    assert not [finding for finding in check_account(job) if ".tmp" in finding.text]


def test_the_cache_says_what_it_holds_and_that_nothing_limits_it(here: Paths) -> None:
    (here.cache / "below").mkdir(parents=True)
    (here.cache / "below" / "x").write_bytes(b"x" * 2048)
    text = check_cache(here.cache).text
    assert "holds 2.0KB, no quota" in text
    assert text.endswith(" free")


def test_a_cache_is_looked_for_and_never_made(here: Paths) -> None:
    assert check_cache(here.cache).verdict in (Verdict.OK, Verdict.WARN)
    assert not here.cache.exists()
