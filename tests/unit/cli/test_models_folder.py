"""Deleting: only a model, only in our own folder, and nothing beside it."""

from pathlib import Path

import pytest

from omlxd.cli.models_folder import NotOurs, delete, find_own, size_of


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
    with pytest.raises(NotOurs):
        find_own(models, name)


def test_a_folder_of_several_models_is_not_one(models: Path) -> None:
    with pytest.raises(NotOurs, match="Name one of them"):
        find_own(models, "org")


def test_a_model_elsewhere_is_left_where_it_is(models: Path) -> None:
    with pytest.raises(NotOurs, match="deleted where they are"):
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
    with pytest.raises(NotOurs, match="link"):
        find_own(models, link)
    assert (outside / "one" / "config.json").exists()
