import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

from omlxd.config.example import example
from omlxd.config.load import SECTIONS, load

EXAMPLE = Path(__file__).parents[3] / "config.example.toml"


def test_the_example_is_the_one_the_code_writes() -> None:
    assert EXAMPLE.read_text() == example(), "write it anew: scripts/example_config"


def test_the_example_names_every_option_and_shows_its_default() -> None:
    text = EXAMPLE.read_text()
    table = tomllib.loads(text)
    for section, options_class in SECTIONS.items():
        for f in fields(options_class):
            assert f"\n{f.name} =" in text or f"\n# {f.name} =" in text or f".{f.name}." in text
            assert f.default in (None, MISSING) or f.name in table[section]


def test_the_example_is_a_configuration_of_defaults(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(EXAMPLE.read_text())
    from_example = load({}, {}, home=str(tmp_path))
    (tmp_path / "config.toml").unlink()
    from_nothing = load({}, {}, home=str(tmp_path))
    for section in SECTIONS:
        assert getattr(from_example, section) == getattr(from_nothing, section)
