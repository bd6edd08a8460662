import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from omlxd.config.load import SECTIONS, Origin, example, load
from omlxd.config.options import LogLevel
from omlxd.errors import ConfigError


def write(home: Path, text: str) -> str:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)
    return str(home)


def test_everything_has_a_default(tmp_path: Path) -> None:
    config = load({}, {}, home=str(tmp_path))
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8484)
    assert config.origins == {}


def test_a_home_holds_all_places(tmp_path: Path) -> None:
    found = load({}, {"OMLXD_HOME": str(tmp_path)}).paths
    assert found.config_file == tmp_path / "config.toml"
    assert {found.state, found.models, found.cache, found.logs} == {
        tmp_path / name for name in ("state", "models", "cache", "logs")
    }


def test_flag_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    home = write(tmp_path, "[server]\nport = 1\ndrain_limit = 7\nhost = '::1'\n")
    environ = {"OMLXD_SERVER_PORT": "2", "OMLXD_SERVER_DRAIN_LIMIT": "8"}
    config = load({"server.port": "3"}, environ, home=home)
    assert config.server.port == 3
    assert config.server.drain_limit == 8.0
    assert config.server.host == "::1"
    assert config.origins == {
        "server.port": Origin.FLAG,
        "server.drain_limit": Origin.ENVIRONMENT,
        "server.host": Origin.FILE,
    }


def test_all_mistakes_are_reported_at_once_with_their_keys(tmp_path: Path) -> None:
    home = write(
        tmp_path, "[server]\nport = 'x'\nnope = 1\n[log]\nlevel = 'loud'\n[extra]\na = 1\n"
    )
    with pytest.raises(ConfigError) as caught:
        load({"server.host": 3}, {"OMLXD_SERVER_DRAIN_LIMIT": "soon"}, home=home)
    text = caught.value.message
    for part in (
        "server.port: must be a whole number",
        "server.nope: unknown key; known are",
        "log.level: must be one of 'debug'",
        "extra: unknown section",
        "OMLXD_SERVER_DRAIN_LIMIT: must be a number",
        "--host: must be a text",
    ):
        assert part in text
    assert len(caught.value.mistakes) == 6


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    home = write(tmp_path, "[server]\nport = = 3\n")
    with pytest.raises(ConfigError, match="line 2"):
        load({}, {}, home=home)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load({}, {}, home=str(tmp_path), config_file=str(tmp_path / "other.toml"))


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_bounds_are_named(tmp_path: Path, port: str) -> None:
    with pytest.raises(ConfigError, match="--port: must be at"):
        load({"server.port": port}, {}, home=str(tmp_path))


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_numbers_are_finite(tmp_path: Path, value: str) -> None:
    home = write(tmp_path, f"[server]\ndrain_limit = {value}\n")
    with pytest.raises(ConfigError, match=r"server\.drain_limit: must be finite"):
        load({}, {}, home=home)


def test_other_variables_of_the_prefix_are_left_alone_but_strange_ones_are_named(
    tmp_path: Path,
) -> None:
    """Otherwise a misspelt option would be ignored silently."""
    environ = {"OMLXD_VENV": "x", "OMLXD_TEST_FAULT": "x", "OMLXD_KEY": "x", "PATH": "x"}
    config = load({"log.level": "debug"}, environ, home=str(tmp_path))
    assert config.log.level is LogLevel.DEBUG
    assert config.strange_variables == ()
    environ |= {"OMLXD_MODELDIR": "x", "OMLXD_DRAIN_LIMIT": "1", "OMLXD_SERVER": "x"}
    config = load({}, environ, home=str(tmp_path))
    assert config.strange_variables == ("OMLXD_DRAIN_LIMIT", "OMLXD_MODELDIR", "OMLXD_SERVER")


def test_variables_may_be_named_as_the_flags_are(tmp_path: Path) -> None:
    environ = {"OMLXD_PORT": "9000", "OMLXD_HOST": "::1", "OMLXD_MODEL_DIR": "/a,/b"}
    config = load({}, environ | {"OMLXD_LOG_LEVEL": "error"}, home=str(tmp_path))
    assert (config.server.host, config.server.port) == ("::1", 9000)
    assert config.models.dirs == ("/a", "/b")
    assert config.log.level is LogLevel.ERROR
    assert set(config.origins.values()) == {Origin.ENVIRONMENT}
    both = environ | {"OMLXD_SERVER_PORT": "9001"}
    assert load({}, both, home=str(tmp_path)).server.port == 9001
    assert load({"server.port": "1"}, both, home=str(tmp_path)).server.port == 1


def test_mistakes_are_told_under_the_names_that_were_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as flags:
        load({"log.level": "loud", "models.dirs": 3}, {}, home=str(tmp_path))
    assert [m.partition(":")[0] for m in flags.value.mistakes] == ["--log-level", "--model-dir"]
    with pytest.raises(ConfigError) as variables:
        load({}, {"OMLXD_PORT": "x", "OMLXD_SERVER_PROT": "1"}, home=str(tmp_path))
    names = [m.partition(":")[0] for m in variables.value.mistakes]
    assert names == ["OMLXD_PORT", "OMLXD_SERVER_PROT"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[server]\nport = " + "9" * 5000, id="more digits than Python reads"),
        pytest.param("x = " + "[" * 20_000 + "]" * 20_000, id="deeper than Python goes"),
        pytest.param("[server]\ndrain_limit = 1" + "0" * 400, id="beyond what a float holds"),
        pytest.param("[server]\nport = 1" + "0" * 400, id="beyond every port"),
        pytest.param('[guard]\ncustom_ceiling = "1' + "0" * 400 + '"', id="beyond every size"),
        pytest.param("[guard]\ncustom_ceiling = 1" + "0" * 400, id="beyond every number of bytes"),
        pytest.param("\0", id="no text"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_mistake_and_no_crash(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.toml"):
        load({}, {}, home=write(tmp_path, text))


@pytest.mark.parametrize("value", ["9" * 5000, "²", "1" + "0" * 400])
@pytest.mark.parametrize("name", ["SERVER_PORT", "SERVER_DRAIN_LIMIT", "GUARD_CUSTOM_CEILING"])
def test_a_variable_that_is_no_number_is_a_mistake_and_no_crash(
    tmp_path: Path, name: str, value: str
) -> None:
    with pytest.raises(ConfigError, match=f"OMLXD_{name}"):
        load({}, {f"OMLXD_{name}": value}, home=str(tmp_path))


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("guard.custom_ceiling", 24),
        ("guard.wired_limit", 24),
        ("backend.pool_limit", 2),
        ("backend.load_piece", 64),
        ("api.max_body", 8),
    ],
)
def test_a_size_without_a_unit_is_a_mistake_wherever_it_is_written(
    tmp_path: Path, option: str, meant: int
) -> None:
    section, _, key = option.partition(".")
    needs = "tier = 'custom'\n" if key == "custom_ceiling" else ""
    for text in (f"{key} = {meant}", f"{key} = '{meant}'"):
        with pytest.raises(ConfigError, match="without a unit: give one, as in '24GB'"):
            load({}, {}, home=write(tmp_path, f"[{section}]\n{needs}{text}\n"))
    write(tmp_path, "")
    with pytest.raises(ConfigError, match="without a unit"):
        load({}, {f"OMLXD_{section.upper()}_{key.upper()}": str(meant)}, home=str(tmp_path))


def test_no_size_at_all_needs_no_unit(tmp_path: Path) -> None:
    home = write(tmp_path, "[backend]\npool_limit = 0\n")
    assert load({}, {}, home=home).backend.pool_limit == 0


def test_a_home_of_nobody_is_a_mistake() -> None:
    for given in ({"home": "~no_such_user/x"}, {"config_file": "~no_such_user/x.toml"}):
        with pytest.raises(ConfigError, match="~no_such_user"):
            load({}, {}, **given)


@pytest.mark.parametrize("alias", ["", " ", "two\\nlines", "\\u001b[2J", "x" * 201])
def test_an_alias_that_would_not_be_read_as_a_name_is_refused(tmp_path: Path, alias: str) -> None:
    home = write(tmp_path, f'[models.settings."org/m"]\naliases = ["{alias}"]\n')
    with pytest.raises(ConfigError) as caught:
        load({}, {}, home=home)
    assert "models.settings: org/m.aliases: cannot be used: " in caught.value.message
    assert caught.value.message.isprintable()


def mistakes_of(flags: dict[str, object], environ: dict[str, str], home: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(flags, environ, home=home)
    return list(caught.value.mistakes)


def test_mistakes_of_every_kind_are_reported_at_once(tmp_path: Path) -> None:
    home = write(
        tmp_path,
        "[guard]\nsoft_threshold = 0.9\nhard_threshold = 0.5\n"
        f"[server]\nsocket = '/{'s' * 104}'\n"
        "[models]\ndirs = ['~nobody77/x', '/sound', '', '~nobody78/x']\n",
    )
    found = mistakes_of({"server.host": "bad host", "server.port": "99999"}, {}, home)
    assert len(found) == 5
    for mistake, parts in zip(
        sorted(found),
        (
            ("--host: ", "'bad host' is not an address"),
            ("--port: ", "at most 65535"),
            ("models.dirs: ", "'~nobody77/x'", "'~nobody78/x'", "'' is no path"),
            ("server.socket: ", "105 bytes, at most 103"),
            ("[guard]: ",),
        ),
        strict=True,
    ):
        assert all(part in mistake for part in parts), mistake


@pytest.mark.parametrize("text", ["[guard\n", "guard = 3\n", "[guard]\nsoft_threshold = 'x'\n"])
def test_a_combination_is_judged_only_where_all_of_it_is_known(tmp_path: Path, text: str) -> None:
    environ = {"OMLXD_GUARD_HARD_THRESHOLD": "0.5"}
    (mistake,) = mistakes_of({}, environ, write(tmp_path, text))
    assert "config.toml: " in mistake


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "::1", "fe80::1%en0", "localhost", "my_mac.local", "büro.example", "::"]
)
def test_a_host_is_an_address_or_a_name(tmp_path: Path, host: str) -> None:
    assert load({"server.host": host}, {}, home=str(tmp_path)).server.host == host


@pytest.mark.parametrize("host", ["", "a b", "[::1]", "::g", "a..b", "http://a", "a/b", "a\0", "*"])
def test_what_is_no_host_is_a_mistake_of_the_configuration(tmp_path: Path, host: str) -> None:
    (mistake,) = mistakes_of({"server.host": host}, {}, str(tmp_path))
    assert mistake.startswith("--host: cannot be used: ")


def test_paths_are_relative_to_the_file_that_names_them_else_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a command in another working directory would use other folders than the daemon."""
    monkeypatch.chdir(tmp_path)
    home = write(
        tmp_path / "home",
        "[server]\nsocket = 'run/o.sock'\n[models]\ndirs = ['rel', '~/there', '/whole']\n",
    )
    config = load({}, {}, home=home)
    assert config.server.socket == f"{home}/run/o.sock"
    assert config.models.dirs == (f"{home}/rel", "~/there", "/whole")
    given = {"OMLXD_MODEL_DIR": "a,~/b", "OMLXD_SERVER_SOCKET": "o.sock"}
    config = load({}, given, home=home)
    assert config.models.dirs == (f"{tmp_path}/a", "~/b")
    assert config.server.socket == f"{tmp_path}/o.sock"
    assert load({"models.dirs": ["x,y"]}, given, home=home).models.dirs == (f"{tmp_path}/x,y",)


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
