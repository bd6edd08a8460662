"""The key that a command sends, and to which daemon."""

from pathlib import Path

import pytest

from omlxd.api.key_file import LOCAL_FILE
from omlxd.cli.client import find_key
from omlxd.cli.main import run


@pytest.fixture
def home(tmp_path: Path) -> str:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / LOCAL_FILE).write_text("omlxd_local\n")
    return str(tmp_path)


def test_the_local_daemon_gets_the_key_it_left(home: str) -> None:
    assert find_key(None, home, {}) == "omlxd_local"
    assert find_key(None, None, {"OMLXD_HOME": home}) == "omlxd_local"


def test_a_daemon_named_by_its_address_never_gets_it(home: str) -> None:
    assert find_key("http://box:8484", home, {}) is None
    assert find_key(None, home, {"OMLXD_URL": "http://box:8484"}) is None


def test_a_key_of_the_environment_goes_before(home: str) -> None:
    environ = {"OMLXD_KEY": " omlxd_mine\n"}
    assert find_key(None, home, environ) == "omlxd_mine"
    assert find_key("http://box:8484", home, environ) == "omlxd_mine"


def test_without_any_there_is_none(tmp_path: Path) -> None:
    assert find_key(None, str(tmp_path), {}) is None


def test_keys_are_made_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--home", str(tmp_path)]
    assert run(["key", "add", "app", "--scope", "control", *where]) == 0
    made = capsys.readouterr()
    assert made.out.startswith("omlxd_")
    assert made.out.count("\n") == 1
    assert made.out.strip() not in made.err
    assert run(["key", "list", *where]) == 0
    listed = capsys.readouterr().out
    assert "app" in listed
    assert "control" in listed
    assert made.out.strip() not in listed
    assert run(["key", "add", "app", *where]) == 1
    assert "already" in capsys.readouterr().err
    assert run(["key", "revoke", "app", *where]) == 0
    assert "No key is left" in capsys.readouterr().err
    assert run(["key", "revoke", "app", *where]) == 1


def test_a_key_file_that_is_not_trusted_is_a_configuration_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--home", str(tmp_path)]
    run(["key", "add", "app", *where])
    (tmp_path / "state" / "keys.json").chmod(0o644)
    assert run(["key", "list", *where]) == 78
    assert "chmod 600" in capsys.readouterr().err
