"""Names: exact, then alias, then any case, then without the organisation."""

import pytest

from omlxd.errors import AmbiguousModel, ModelNotFound
from omlxd.library.names import find

IDS = ("org/Small", "other/Small", "org/large", "plain", "PLAIN", "org/alias-of-large")
ALIASES = {"big": ("org/large",), "two": ("org/large", "plain"), "plain": ("org/large",)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/Small", "org/Small"),
        ("plain", "plain"),
        ("big", "org/large"),
        ("BIG", "org/large"),
        ("ORG/SMALL", "org/Small"),
        ("large", "org/large"),
        ("LARGE", "org/large"),
    ],
)
def test_the_first_rule_that_matches_decides(name: str, expected: str) -> None:
    assert find(name, IDS, ALIASES) == expected


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("small", ["org/Small", "other/Small"]),
        ("two", ["org/large", "plain"]),
        ("Plain", ["PLAIN", "org/large", "plain"]),
    ],
)
def test_several_matches_are_an_error_that_lists_them(name: str, candidates: list[str]) -> None:
    with pytest.raises(AmbiguousModel) as caught:
        find(name, IDS, ALIASES)
    assert caught.value.details["candidates"] == candidates


def test_a_model_filed_without_its_organisation_is_found_with_it() -> None:
    assert find("any/model", ("model",), {}) == "model"


def test_another_organisation_is_another_model() -> None:
    with pytest.raises(ModelNotFound):
        find("evil/large", IDS, ALIASES)


@pytest.mark.parametrize("name", ["org/lagre", "Larg", "org/large-4bit"])
def test_an_unknown_name_gives_the_nearest(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        find(name, IDS, ALIASES)
    assert "org/large" in caught.value.details["nearest"]


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "x" * 100_000, "\0", "/"])
def test_nonsense_is_not_found_and_never_a_path(name: str) -> None:
    with pytest.raises(ModelNotFound):
        find(name, IDS, ALIASES)


def test_an_alias_of_a_model_that_is_gone_means_nothing() -> None:
    with pytest.raises(ModelNotFound):
        find("old", ("plain",), {"old": ("gone",)})
