"""The key file: the stored data of a key, and the cases in which the file is not trusted."""

import json
import os
import stat
from pathlib import Path

import pytest

from omlxd.api.key_file import Scope, add_key, digest, path_in, read_keys, revoke_key
from omlxd.errors import ConfigError, InvalidRequest, NotFound


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return path_in(tmp_path / "state")


def test_without_a_file_there_are_no_keys(path: Path) -> None:
    assert read_keys(path) == ()


def test_an_added_key_is_kept_as_a_hash_in_a_file_of_its_owner_alone(path: Path) -> None:
    key = add_key(path, "laptop", Scope.INFERENCE, 1000.0)
    (stored,) = read_keys(path)
    assert (stored.name, stored.scope, stored.created_at) == ("laptop", Scope.INFERENCE, 1000.0)
    assert stored.digest == digest(key)
    assert key.removeprefix("omlxd_") not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_every_key_is_another_one_of_256_bits(path: Path) -> None:
    keys = {add_key(path, f"k{number}", Scope.ALL, 0.0) for number in range(20)}
    assert len(keys) == 20
    assert {len(key.removeprefix("omlxd_")) for key in keys} == {43}


def test_t75_white_space_and_padding_do_not_make_another_key() -> None:
    for other in (" omlxd_abc", "omlxd_abc\r\n", "\tomlxd_abc==", "omlxd_abc= "):
        assert digest(other) == digest("omlxd_abc")
    for other in ("omlxd_ab", "omlxd_abcd", "OMLXD_abc", "omlxd_ abc"):
        assert digest(other) != digest("omlxd_abc")


def test_a_revoked_key_is_gone_and_the_others_stay(path: Path) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    add_key(path, "b", Scope.ALL, 0.0)
    assert [key.name for key in revoke_key(path, "a")] == ["b"]
    assert [key.name for key in read_keys(path)] == ["b"]
    with pytest.raises(NotFound, match=r"no key 'a'; there is b"):
        revoke_key(path, "a")


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "ü", "a" * 65, "a\n"])
def test_a_name_is_plain(path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="no name for a key"):
        add_key(path, name, Scope.ALL, 0.0)


def test_a_name_is_used_once(path: Path) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    with pytest.raises(InvalidRequest, match="already"):
        add_key(path, "a", Scope.INFERENCE, 0.0)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_open_is_refused_with_the_remedy(path: Path, mode: int) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=r"chmod 600"):
        read_keys(path)


def test_a_folder_in_which_others_can_replace_it_is_refused(path: Path) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    path.parent.chmod(0o770)
    with pytest.raises(ConfigError, match=r"chmod 700"):
        read_keys(path)


def test_a_file_of_somebody_else_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match="another user"):
        read_keys(path)
    with pytest.raises(ConfigError, match="belongs to uid"):
        add_key(path, "b", Scope.ALL, 0.0)


def test_a_link_or_a_pipe_in_its_place_is_refused(path: Path) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    real = path.rename(path.with_name("elsewhere"))
    path.symlink_to(real)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_keys(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 2, "keys": []}',
        '{"version": 1, "keys": [{"name": "a"}]}',
        '{"version": 1, "keys": "none"}',
        '{"version": 1, "keys": [{"name": "a", "scope": "root", "sha256": "", "created_at": 0}]}',
        '{"version": 1, "keys": [{"name": "a", "scope": "all", "sha256": "", "created_at": 0}]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_never_taken_for_no_keys(path: Path, text: str) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    path.write_text(text)
    with pytest.raises(ConfigError, match="damaged"):
        read_keys(path)
    with pytest.raises(ConfigError, match="damaged"):
        add_key(path, "b", Scope.ALL, 0.0)
    assert path.read_text() == text


def test_two_keys_of_one_name_are_damage(path: Path) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    value = json.loads(path.read_text())
    value["keys"] *= 2
    path.write_text(json.dumps(value))
    with pytest.raises(ConfigError, match="two keys have one name"):
        read_keys(path)


def test_a_file_of_somebody_else_is_refused_and_root_is_not_told_to_take_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the daemon of that user would stop."""
    add_key(path, "app", Scope.ALL, 0.0)
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    uid = path.stat().st_uid
    assert len(read_keys(path, owner=uid)) == 1
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError) as refused:
        read_keys(path)
    assert f"uid {uid}" in str(refused.value)
    assert "chown" not in str(refused.value)
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(ConfigError, match=f"sudo chown {uid + 1}"):
        read_keys(path)
