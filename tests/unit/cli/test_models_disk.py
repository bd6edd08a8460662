"""Deleting a model: only in our own folder, never one in use, and together with its settings."""

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from omlxd.cli.client import Refused, Unreachable, model_path
from omlxd.cli.models_disk import (
    NotDeletable,
    delete,
    find_own,
    forget,
    pull_model,
    refuse_used,
    remove,
    size_of,
)


class Settings:
    """Answers a PATCH like the daemon; ``means`` is the model to which a name resolves."""

    def __init__(self, means: dict[str, str]) -> None:
        self.means = means
        self.changes: list[tuple[str, dict[str, Any]]] = []

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        model = self.means.get(path.removeprefix("/v1/models/"))
        if model is None:
            raise Refused("does not exist here")
        if body:
            self.changes.append((model, body))
        return {"id": model}


def test_a_loaded_model_is_not_deleted_however_it_is_spelled() -> None:
    models = [{"id": "org/m1", "state": "ready"}, {"id": "org/m2", "state": "absent"}]
    with pytest.raises(Refused, match="omlxd models unload org/m1"):
        refuse_used(models, "ORG/M1")
    refuse_used(models, "org/m2")


def test_what_was_set_for_a_deleted_model_is_taken_back() -> None:
    daemon: Any = Settings(dict.fromkeys(("Own/M", "own/m"), "own/m"))
    forget(daemon, "Own/M", ["other"])
    ((model, body),) = daemon.changes
    assert model == "own/m"
    assert {"default", "pinned", "aliases", "top_p"} <= set(body)
    assert set(body.values()) == {None}


@pytest.mark.parametrize(
    ("means", "left"),
    [
        ({}, []),
        ({"own/m": "own/m"}, ["OWN/m"]),
        ({"own/m": "m"}, []),
    ],
    ids=["nothing was set", "another folder has one", "the name leads to another"],
)
def test_what_was_set_for_others_stays(means: dict[str, str], left: list[str]) -> None:
    daemon: Any = Settings(means)
    forget(daemon, "own/m", left)
    assert daemon.changes == []


def test_without_a_daemon_the_settings_are_forgotten_where_they_are_kept(tmp_path: Path) -> None:
    model, arguments = removal(tmp_path)
    assert remove(arguments) == 0
    assert not model.exists()
    assert json.loads((tmp_path / "state" / "models.json").read_text()) == {
        "default": None,
        "models": {},
    }


def removal(home: Path) -> tuple[Path, argparse.Namespace]:
    """A model with settings, and the function that removes it."""
    model = home / "models" / "own" / "m"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (home / "state").mkdir()
    settings = {"default": "own/m", "models": {"own/m": {"pinned": True}}}
    (home / "state" / "models.json").write_text(json.dumps(settings))
    return model, argparse.Namespace(home=str(home), url=None, model="own/m", yes=True)


def test_root_writes_no_settings_that_the_daemon_could_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, arguments = removal(tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(Refused, match="run this as that user"):
        remove(arguments)
    assert model.exists()


@pytest.mark.parametrize("reason", ["closed", "no port yet"])
def test_a_daemon_that_cannot_be_asked_is_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    model, arguments = removal(tmp_path)
    record = {"instance_id": "x", "pid": os.getpid(), "started_at": 1.0, "version": "1"}
    (tmp_path / "state" / "instance.json").write_text(json.dumps(record))
    if reason == "closed":

        def closed(*_: object, **__: object) -> int:
            raise PermissionError

        monkeypatch.setattr(os, "open", closed)
    with pytest.raises(Unreachable):
        remove(arguments)
    assert model.exists()


@pytest.mark.parametrize("name", ["../etc", "a/../b", ".", "", "a//b", "/a"])
def test_a_name_that_would_lead_out_of_the_models_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=re.escape(f"'{name}' is not the name of a model")):
        model_path(name)


def test_a_name_is_one_part_of_an_address() -> None:
    assert model_path("org/a?b#c d", "/load") == "/v1/models/org/a%3Fb%23c%20d/load"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "omlxd: No space left on device.\n"),
        (OSError(13, "Permission denied", "/x"), "omlxd: Permission denied: /x\n"),
    ],
)
def test_what_the_system_refuses_is_one_sentence(
    error: OSError, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> int:
        raise error

    monkeypatch.setattr("omlxd.cli.models_disk._pull", fail)
    assert pull_model(argparse.Namespace(repository="org/name", revision=None)) == 1
    assert capsys.readouterr().err == said


@pytest.fixture
def models(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    for name in ("org/one", "org/two", "plain"):
        (root / name).mkdir(parents=True)
        (root / name / "config.json").write_text("{}")
        (root / name / "model.safetensors").write_bytes(b"12345")
    return root


def test_a_model_is_deleted_and_its_neighbours_stay(models: Path) -> None:
    folder = find_own(models, "org/one")
    assert size_of(folder) == 7
    delete(models, folder)
    assert sorted(p.name for p in (models / "org").iterdir()) == ["two"]
    assert sorted(p.name for p in models.iterdir()) == ["org", "plain"]


def test_the_last_model_of_an_organisation_takes_its_folder_along(models: Path) -> None:
    delete(models, find_own(models, "org/one"))
    delete(models, find_own(models, "org/two"))
    assert sorted(p.name for p in models.iterdir()) == ["plain"]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "org/..", "/org/one", "~", "a/b/c", "x\0"])
def test_what_is_no_id_is_not_looked_for(models: Path, name: str) -> None:
    with pytest.raises(NotDeletable):
        find_own(models, name)


def test_a_folder_of_several_models_is_not_one(models: Path) -> None:
    with pytest.raises(NotDeletable, match="Name one of them"):
        find_own(models, "org")


def test_a_model_elsewhere_is_left_where_it_is(models: Path) -> None:
    with pytest.raises(NotDeletable, match="deleted where they are"):
        find_own(models, "org/three")


@pytest.mark.parametrize("link", ["linked", "links/one"])
def test_links_out_of_the_folder_are_not_followed(models: Path, tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    (outside / "one").mkdir(parents=True)
    (outside / "one" / "config.json").write_text("{}")
    if link == "linked":
        (models / "linked").symlink_to(outside / "one")
    else:
        (models / "links").symlink_to(outside)
    with pytest.raises(NotDeletable, match="link"):
        find_own(models, link)
    assert (outside / "one" / "config.json").exists()
