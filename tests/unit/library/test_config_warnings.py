"""Wishes that cannot be meant so are told, each once."""

from pathlib import Path

from structlog.testing import capture_logs

from omlxd.library.catalog import Catalog, RootScan, merge
from omlxd.library.config_warnings import ConfigWarnings, doubts
from omlxd.library.folder import HeaderCache
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
        for event, fields in doubts(
            catalog(*ids), ModelSettingsStore(options.settings, options.default)
        )
    }


def aliased(**aliases: str) -> dict[str, ModelSettings]:
    return {model_id: ModelSettings(aliases=(alias,)) for model_id, alias in aliases.items()}


def test_what_is_meant_as_it_stands_is_no_doubt() -> None:
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


def test_each_doubt_is_told_once() -> None:
    book, told = (
        ModelSettingsStore({"ghost": ONE}, "m"),
        ConfigWarnings(),
    )
    with capture_logs() as logs:
        told.tell(catalog("m"), book)
        told.tell(catalog("m"), book)
        told.tell(catalog("n"), book)
    assert [entry["event"] for entry in logs] == ["settings_of_no_model", "default_is_no_model"]


async def test_doubts_are_told_when_the_models_are_known() -> None:
    def scan(path: str, headers: HeaderCache) -> RootScan:
        return a_scan(a_model("m"))

    options = PoolOptions(settings={"M": ONE})
    with capture_logs() as logs:
        house = House(options=options, roots=(Path("/models"),), scan=scan)
        assert [entry for entry in logs if entry["event"] == "settings_of_no_model"] == []
        await house.pool.rescan()
        await house.pool.rescan()
    (doubt,) = [entry for entry in logs if entry["event"] == "settings_of_no_model"]
    assert (doubt["model"], doubt["meant"], doubt["log_level"]) == ("M", "m", "warning")
