"""An unreadable folder does not count as deleted, nor a download as a damaged model."""

import errno
import os
from pathlib import Path

import pytest

from omlxd.library.catalog import RootScan, RootState, RootStatus, keep_unread
from omlxd.library.folder import HeaderCache
from omlxd.library.scan import scan_root
from tests.unit.library.disk import make_hub_model, make_model
from tests.unit.pool.fakes import a_model

OLD, NEW = "a" * 40, "b" * 40


def scan(root: Path) -> RootScan:
    return scan_root(str(root), HeaderCache())


def ids(found: RootScan) -> list[str]:
    return sorted(model.id for model in found.models)


def fail_on(monkeypatch: pytest.MonkeyPatch, function: str, path: Path, number: int) -> None:
    """``os.function(path)`` fails."""
    real = getattr(os, function)

    def failing(target, *more, **named):  # type: ignore[no-untyped-def]
        if os.fspath(target) == str(path):
            raise OSError(number, os.strerror(number))
        return real(target, *more, **named)

    monkeypatch.setattr(os, function, failing)


@pytest.mark.parametrize(
    ("function", "path"),
    [
        ("listdir", "org"),
        ("listdir", "org/one"),
        ("stat", "org"),
        ("stat", "org/one"),
        ("stat", "org/one/config.json"),
        ("stat", "org/one/model.safetensors"),
    ],
)
def test_a_model_that_cannot_be_read_for_a_moment_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, path: str
) -> None:
    make_model(tmp_path / "org" / "one")
    make_model(tmp_path / "two")
    known = scan(tmp_path)
    fail_on(monkeypatch, function, tmp_path / path, errno.EIO)
    found = keep_unread(known, scan(tmp_path))
    assert ids(found) == ["org/one", "two"]
    assert found.broken == ()
    assert any("cannot be read" in skipped.reason for skipped in found.skipped)


def test_weights_that_cannot_be_opened_for_a_moment_are_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = make_model(tmp_path / "m") / "model.safetensors"
    known = scan(tmp_path)
    with monkeypatch.context() as patch:
        fail_on(patch, "open", weights, errno.EMFILE)
        headers = HeaderCache()
        found = keep_unread(known, scan_root(str(tmp_path), headers))
        assert ids(found) == ["m"]
    assert scan_root(str(tmp_path), headers).broken == ()


def test_what_is_gone_or_damaged_does_not_stay(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_model(tmp_path / name)
    known = scan(tmp_path)
    (tmp_path / "one" / "model.safetensors").write_bytes(b"damaged")
    for file in (tmp_path / "two").iterdir():
        file.unlink()
    found = keep_unread(known, scan(tmp_path))
    assert ids(found) == []
    assert [broken.id for broken in found.broken] == ["one"]


@pytest.mark.parametrize(
    ("state", "stays"),
    [(RootState.DENIED, True), (RootState.FAILED, True), (RootState.ABSENT, False)],
)
def test_a_root_that_fails_keeps_its_models_and_an_absent_one_does_not(
    state: RootState, stays: bool
) -> None:
    known = RootScan(RootStatus("/r", RootState.OK), (a_model("m"),))
    found = keep_unread(known, RootScan(RootStatus("/r", state, "why")))
    assert (found.status.state, found.status.detail) == (state, "why")
    assert ids(found) == (["m"] if stays else [])


@pytest.mark.parametrize(
    "there", ["nothing", "the folder", "the config", "a link to nothing", "all"]
)
def test_a_commit_is_served_once_all_of_it_is_downloaded(tmp_path: Path, there: str) -> None:
    """huggingface_hub writes refs/main before the files."""
    old = make_hub_model(tmp_path, "org/m", commit=OLD)
    before = scan(tmp_path).models[0]
    new = make_hub_model(tmp_path, "org/m", commit=NEW)
    if there == "nothing":
        for file in new.iterdir():
            file.unlink()
        new.rmdir()
    for file in new.iterdir() if new.exists() else ():
        if there == "the folder" or (there == "the config" and file.name != "config.json"):
            file.unlink()
    if there == "a link to nothing":
        (new / "model.safetensors").resolve().unlink()
    found = scan(tmp_path)
    (model,) = found.models
    if there == "all":
        assert model.path == str(new)
        return
    assert (model.path, model.fingerprint) == (str(old), before.fingerprint)
    (skipped,) = found.skipped
    assert f"served as of {OLD}" in skipped.reason
    assert found.broken == ()


def test_a_damaged_commit_is_not_passed_over_for_an_older_one(tmp_path: Path) -> None:
    make_hub_model(tmp_path, "org/m", commit=OLD)
    new = make_hub_model(tmp_path, "org/m", commit=NEW)
    (new / "model.safetensors").resolve().write_bytes(b"damaged")
    found = scan(tmp_path)
    assert (ids(found), [broken.id for broken in found.broken]) == ([], ["org/m"])
