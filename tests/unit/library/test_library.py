"""Warnings about the configuration, and whose settings a name means."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from omlxd.errors import Starting
from omlxd.library.catalog import Catalog, RootScan, merge
from omlxd.library.folder import HeaderCache
from omlxd.library.library import Library, config_warnings
from omlxd.model_settings.options import ModelSettings
from omlxd.model_settings.settings import ModelSettingsStore
from omlxd.pool.options import PoolOptions
from tests.unit.pool.fakes import House, a_model, a_scan

ONE = ModelSettings(pinned=True)


def catalog(*ids: str) -> Catalog:
    return merge([a_scan(*(a_model(model_id) for model_id in ids))])


def found(options: PoolOptions, *ids: str) -> dict[str, dict[str, object]]:
    return {
        event: dict(fields)
        for event, fields in config_warnings(
            catalog(*ids), ModelSettingsStore(options.settings, options.default)
        )
    }


def aliased(**aliases: str) -> dict[str, ModelSettings]:
    return {model_id: ModelSettings(aliases=(alias,)) for model_id, alias in aliases.items()}


def test_settings_without_a_fault_give_no_warning() -> None:
    settings = {"org/gamma": ModelSettings(aliases=("g", "org/gamma"))}
    assert found(PoolOptions(settings=settings, default="g"), "org/gamma", "beta") == {}
    assert found(PoolOptions(), "beta") == {}


def test_settings_go_by_the_exact_id() -> None:
    assert found(PoolOptions(settings={"GAMMA": ONE}), "org/gamma") == {
        "settings_of_no_model": {"model": "GAMMA", "meant": "org/gamma"}
    }
    assert found(PoolOptions(settings={"gh\x1bost": ONE}), "gamma") == {
        "settings_of_no_model": {"model": r"gh\x1bost", "meant": None}
    }


def test_an_alias_leads_to_one_model() -> None:
    settings = aliased(a="x", b="x")
    assert found(PoolOptions(settings=settings), "a", "b") == {
        "alias_of_several_models": {"alias": "x", "models": ("a", "b")}
    }
    assert found(PoolOptions(settings=aliased(a="b")), "a", "b") == {
        "alias_is_a_model": {"alias": "b", "models": ("a",)}
    }


def test_a_default_is_one_model() -> None:
    ambiguous = found(PoolOptions(default="m"), "x/m", "y/m")["default_is_no_model"]
    assert "x/m" in str(ambiguous["reason"])
    assert found(PoolOptions(default="mm"), "x/m")["default_is_no_model"]["default"] == "mm"


def test_each_warning_is_logged_once() -> None:
    library = Library((), ModelSettingsStore({"ghost": ONE}, "m"), 10.0)
    with capture_logs() as logs:
        library.adopt(catalog("m"))
        library.adopt(catalog("m"))
        library.adopt(catalog("n"))
    assert [entry["event"] for entry in logs] == ["settings_of_no_model", "default_is_no_model"]


async def test_warnings_wait_until_the_models_are_known() -> None:
    def scan(path: str, headers: HeaderCache) -> RootScan:
        return a_scan(a_model("m"))

    options = PoolOptions(settings={"M": ONE})
    with capture_logs() as logs:
        house = House(options=options, roots=(Path("/models"),), scan=scan)
        assert [entry for entry in logs if entry["event"] == "settings_of_no_model"] == []
        await house.pool.rescan()
        await house.pool.rescan()
    (warning,) = [entry for entry in logs if entry["event"] == "settings_of_no_model"]
    assert (warning["model"], warning["meant"], warning["log_level"]) == ("M", "m", "warning")


async def test_whose_settings_are_meant_is_not_guessed_before_all_models_are_known() -> None:
    settings = ModelSettingsStore({"later": ModelSettings(top_k=2)})
    settings.change("own/m", {"top_k": 2}, ["own/m"])
    library = Library(("/not/yet/scanned",), settings, 10.0)
    library.adopt(catalog("m"))
    assert not library.scanned
    assert library.settings_id("own/m") == "own/m"
    assert library.settings_id("M") == "m"
    for name in ("OWN/M", "x/m", "later"):
        with pytest.raises(Starting):
            library.settings_id(name)
