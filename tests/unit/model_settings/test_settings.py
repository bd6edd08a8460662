"""Settings of single models: configured, changed by API, remembered."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from omlxd.errors import InvalidRequest, ModelBroken, ModelNotFound, StateUnwritable
from omlxd.library.catalog import BrokenModel
from omlxd.model_settings.options import ModelSettings
from omlxd.model_settings.settings import KEYS, ModelSettingsStore, without_model
from omlxd.pool.options import PoolOptions
from tests.unit.pool.fakes import House, a_model, settle

IDS = ("m", "n")
DEEP: dict[str, Any] = {}
for _ in range(5_000):
    DEEP = {"x": DEEP}


def book(**settings: ModelSettings) -> ModelSettingsStore:
    return ModelSettingsStore(settings)


def test_a_change_lies_over_the_configuration_and_null_takes_it_away() -> None:
    settings = book(m=ModelSettings(temperature=0.5, top_p=0.9))
    settings.change("m", {"temperature": 1, "idle_timeout": 5}, IDS)
    assert (settings.of("m").temperature, settings.of("m").top_p) == (1.0, 0.9)
    assert settings.of("m").idle_timeout == 5.0
    assert settings.origin("m") == {"temperature": "api", "top_p": "file", "idle_timeout": "api"}
    settings.change("m", {"temperature": None, "idle_timeout": None}, IDS)
    assert settings.of("m").temperature == 0.5
    assert settings.of("m").idle_timeout is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", 0),
        ("top_k", 1.5),
        ("context_length", 0),
        ("idle_timeout", 0),
        ("idle_timeout", -1),
        ("pinned", 1),
        ("pinned", "yes"),
        ("default", 1),
        ("aliases", "x"),
        ("aliases", [1]),
        ("aliases", [" "]),
        ("aliases", ["x" * 201]),
        ("aliases", ["two\nlines"]),
        ("aliases", ["\x1b[2J"]),
        ("aliases", ["n"]),
        ("aliases", ["half \ud83d"]),
        ("aliases", ["\u202eback"]),
        ("temperature", 10**400),
        ("context_length", 10**400),
        ("template_arguments", {"x": float("nan")}),
        ("template_arguments", {"x": {"\ud83d": 1}}),
        ("template_arguments", {"x": object()}),
        ("template_arguments", DEEP),
        ("template_arguments", []),
        ("unknown", 1),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_changes_nothing(key: str, value: Any) -> None:
    settings = book()
    with pytest.raises(InvalidRequest) as caught:
        settings.change("m", {"top_p": 0.5, key: value}, IDS)
    assert caught.value.param == key
    assert settings.of("m") == ModelSettings()


def test_what_is_set_and_what_is_written_are_copies() -> None:
    settings = book()
    arguments = {"x": {"y": [1]}}
    settings.change("m", {"template_arguments": arguments}, IDS)
    written = settings.to_json()
    arguments["x"]["y"].append(2)
    settings.change("m", {"top_p": 0.5}, IDS)
    settings.change("n", {"top_p": 0.5}, IDS)
    assert written["models"] == {"m": {"template_arguments": {"x": {"y": [1]}}}}


async def test_a_change_that_cannot_be_kept_leaves_the_later_ones_alone(tmp_path: Path) -> None:
    house = House(a_model("m"), state=tmp_path)
    with pytest.raises(InvalidRequest):
        await house.pool.change_settings("m", {"template_arguments": {"x": float("nan")}})
    await house.pool.change_settings("m", {"top_p": 0.5})
    kept = json.loads((tmp_path / "models.json").read_text())
    assert kept["models"] == {"m": {"top_p": 0.5}}


def test_an_alias_belongs_to_one_model() -> None:
    settings = book(n=ModelSettings(aliases=("taken",)))
    with pytest.raises(InvalidRequest, match="already an alias of n"):
        settings.change("m", {"aliases": ["taken"]}, IDS)
    settings.change("m", {"aliases": ["free", "free"]}, IDS)
    assert settings.aliases(IDS) == {"taken": ("n",), "free": ("m",)}
    settings.change(
        "m", {"aliases": ["free", "more", "\U0001f469\u200d\U0001f4bb\u3000\xa07b"]}, IDS
    )
    assert settings.aliases(IDS)["more"] == ("m",)


def test_the_default_model_is_set_and_taken_back() -> None:
    settings = ModelSettingsStore(default="n")
    assert settings.default == "n"
    settings.change("m", {"default": True}, IDS)
    assert settings.default == "m"
    settings.change("n", {"default": False}, IDS)
    assert settings.default == "m"
    settings.change("m", {"default": False}, IDS)
    assert settings.default == "n"
    settings.change("m", {"default": True}, IDS)
    settings.change("m", {"default": None}, IDS)
    assert settings.default == "n"


def test_what_was_changed_survives_and_what_no_longer_reads_is_left_out() -> None:
    settings = book()
    settings.change("m", {"aliases": ["x"], "pinned": True, "default": True}, IDS)
    settings.change("n", {"template_arguments": {"enable_thinking": False}}, IDS)
    stored = json.loads(json.dumps(settings.to_json()))
    stored["models"]["m"]["temperature"] = "hot"
    stored["models"]["m"]["gone"] = 1
    restored = book()
    restored.restore(stored)
    assert restored.of("m") == ModelSettings(aliases=("x",), pinned=True)
    assert restored.of("n").template_arguments == {"enable_thinking": False}
    assert restored.default == "m"


def test_one_models_settings_can_be_left_out_of_what_is_written() -> None:
    settings = book()
    settings.change("own/m", {"pinned": True, "default": True}, IDS)
    settings.change("n", {"top_p": 0.5}, IDS)
    stored = settings.to_json()
    assert without_model(stored, "OWN/m") == {"default": None, "models": {"n": {"top_p": 0.5}}}
    assert without_model(stored, "m") == stored
    assert without_model(None, "m") is None


@pytest.mark.parametrize("stored", [None, [], 5, {"models": 5}, {"models": {"m": 5}}])
def test_nonsense_on_disk_is_no_setting(stored: Any) -> None:
    settings = book()
    settings.restore(stored)
    assert settings.of("m") == ModelSettings()
    assert settings.default is None


async def test_changes_and_sizes_outlive_a_restart(tmp_path: Path) -> None:
    """T67: settings are kept; the size that was measured makes the next estimate better."""
    house = House(a_model("m"), state=tmp_path)
    house.engine.sizes["m"] = 777
    await house.pool.start()
    await house.pool.change_settings("m", {"aliases": ["x"], "default": True})
    assert house.library.resolve("x").id == "m"
    await house.pool.load("m")
    await house.pool.stop()
    again = House(state=tmp_path)
    await again.pool.start()
    again.show(a_model("m"), a_model("n"))
    assert again.library.resolve("x").id == again.library.resolve(None).id == "m"
    assert again.status("m").measured_bytes == 777
    await again.pool.stop()


async def test_a_pin_by_request_loads_and_an_unpin_lets_go() -> None:
    house = House(a_model("m"), options=PoolOptions(idle_timeout=10.0))
    await house.pool.change_settings("m", {"pinned": True})
    await settle()
    assert house.state("m") == "ready"
    await house.time.pass_by(60)
    house.pool.check_idle()
    assert house.state("m") == "ready"
    await house.pool.change_settings("m", {"pinned": False})
    house.pool.check_idle()
    await settle()
    assert house.state("m") == "absent"


async def test_more_concurrency_takes_hold_at_once() -> None:
    options = PoolOptions(settings={"m": ModelSettings(max_concurrent_requests=1)})
    house = House(a_model("m"), options=options)
    first, second = house.use("m", "1"), house.use("m", "2")
    await settle()
    assert second.lease is None
    await house.pool.change_settings("m", {"max_concurrent_requests": 2})
    await settle()
    assert second.lease is not None
    await first.done()
    await second.done()


async def test_a_change_that_cannot_be_saved_says_so_and_is_in_force(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    house = House(a_model("m"), state=blocked / "state")
    with pytest.raises(StateUnwritable):
        await house.pool.change_settings("m", {"temperature": 0.1})
    assert house.library.settings.of("m").temperature == 0.1


async def test_settings_of_an_unknown_model_cannot_be_changed() -> None:
    with pytest.raises(ModelNotFound):
        await House().pool.change_settings("m", {"pinned": True})


async def test_the_settings_of_a_model_that_is_gone_can_still_be_changed() -> None:
    house = House(a_model("own/m"), a_model("n"))
    await house.pool.change_settings("own/m", {"pinned": True, "aliases": ["x"], "default": True})
    house.show(a_model("n"), a_model("m"))
    assert house.library.settings_id("own/m") == "own/m"
    assert house.library.settings_id("OWN/M") == "own/m", "m is another model"
    assert house.library.settings_id("M") == "m", "what is there comes first"
    with pytest.raises(InvalidRequest, match="already an alias of own/m"):
        await house.pool.change_settings("n", {"aliases": ["x"]})
    await house.pool.change_settings("own/m", dict.fromkeys((*KEYS, "default")))
    await house.pool.change_settings("n", {"aliases": ["x"]})
    with pytest.raises(ModelNotFound):
        await house.pool.change_settings("own/m", {"pinned": False})
    house.show(a_model("own/m"), a_model("n"))
    assert not house.status("own/m").pinned
    assert house.library.resolve("x").id == "n"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("GAMMA", "org/gamma"),
        ("gamma", "org/gamma"),
        ("org/gamma", "org/gamma"),
        ("own/m", "own/m"),
        ("OWN/M", "own/m"),
        ("Y", "own/m"),
        ("x", "org/gamma"),
        ("later", "later"),
        ("LATER", "later"),
        ("z", "later"),
    ],
)
async def test_settings_are_those_of_the_model_that_a_request_by_the_name_gets(
    name: str, meant: str
) -> None:
    configured = {
        "GAMMA": ModelSettings(top_k=2),
        "later": ModelSettings(aliases=("x", "z")),
        "org/gamma": ModelSettings(aliases=("x",)),
    }
    house = House(a_model("own/m"), options=PoolOptions(settings=configured))
    await house.pool.change_settings("own/m", {"aliases": ["y"]})
    house.show(a_model("org/gamma"), a_model("m"))
    assert house.library.settings_id(name) == meant


async def test_the_settings_of_a_broken_model_are_shown_and_can_be_changed() -> None:
    house = House(a_model("m"))
    await house.pool.change_settings("m", {"pinned": True, "aliases": ["x"]})
    await settle()
    house.show(broken=[BrokenModel("m", "config.json", "is empty")])
    await settle()
    assert (house.state("m"), house.status("m").pinned) == ("broken", True)
    assert house.status("m").aliases == ("x",)
    assert house.library.settings_id("x") == "m"
    await house.pool.change_settings("m", {"pinned": False})
    assert not house.status("m").pinned
    house.show(a_model("m"))
    await settle()
    assert house.state("m") == "absent"


async def test_a_pin_does_not_bring_back_what_is_gone() -> None:
    house = House(a_model("m"), auto=False)
    use = house.use("m")
    await settle()
    house.engine.tickets[0].finish()
    await settle()
    await house.pool.change_settings("m", {"top_p": 0.5})
    house.show()
    assert house.state("m") == "draining"
    await house.pool.change_settings("m", {"pinned": True})
    assert (house.state("m"), house.pool.preloading) == ("draining", ())
    use.leave.set()
    await settle()
    house.engine.unloads[0][1].set_result(1)
    await settle()
    assert house.pool.statuses() == ()


async def test_a_default_that_is_not_there_is_called_the_default() -> None:
    house = House(a_model("m"), a_model("n"))
    await house.pool.change_settings("m", {"default": True})
    assert [status.id for status in house.pool.statuses() if status.default] == ["m"]
    assert house.library.settings.default == "m"
    house.show(a_model("n"), a_model("o"))
    with pytest.raises(ModelNotFound, match="default model 'm'"):
        house.library.resolve(None)
    assert not any(status.default for status in house.pool.statuses())
    await house.pool.change_settings("m", {"default": None})
    assert house.library.settings.default is None
    with pytest.raises(InvalidRequest):
        house.library.resolve(None)


async def test_the_nearest_names_are_looked_for_only_when_they_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They take longer than a whole ``/status`` may take."""
    house = House(a_model("m"), a_model("n"), options=PoolOptions(default="o"))
    monkeypatch.delattr("difflib.get_close_matches")
    assert not any(status.default for status in house.pool.statuses())
    with pytest.raises(AttributeError):
        house.library.resolve(None)


async def test_a_default_that_cannot_be_served_is_called_the_default() -> None:
    house = House(a_model("a/m"), options=PoolOptions(default="m"))
    house.show(broken=[BrokenModel("a/m", "config.json", "is empty")])
    with pytest.raises(ModelBroken, match="default model 'a/m'"):
        house.library.resolve(None)
    assert house.status("a/m").default


async def test_the_only_model_is_the_default_while_there_is_no_other() -> None:
    house = House(a_model("m"))
    assert house.status("m").default
    house.show(a_model("m"), a_model("n"))
    assert not house.status("m").default


async def test_a_damaged_state_file_is_put_aside_and_reported(tmp_path: Path) -> None:
    (tmp_path / "models.json").write_text("{")
    house = House(a_model("m"), state=tmp_path)
    await house.pool.start()
    assert house.library.settings.of("m") == ModelSettings()
    assert any("models.json is not valid JSON" in text for text in house.pool.troubles)
    await house.pool.stop()
    kept = await asyncio.to_thread(lambda: list(tmp_path.glob("models.json.damaged-*")))
    assert len(kept) == 1
