"""The Unix socket's file: private, short enough, replaced only when nobody is behind it."""

import os
import socket
import stat
from pathlib import Path

import pytest

from omlxd.daemon.listeners import LocalSocket, check_local_socket, open_local_socket
from omlxd.errors import ConfigError, PortTaken


@pytest.fixture
def path(short_folder: Path) -> Path:
    return short_folder / "omlxd.sock"


def opened(path: Path) -> LocalSocket:
    return open_local_socket(str(path))


def closed(local: LocalSocket) -> None:
    local.listener.close()


def refused(path: Path, kind: type[Exception], why: str) -> None:
    """By the daemon, and before it by the doctor in the same words."""
    with pytest.raises(kind, match=why) as foretold:
        check_local_socket(str(path), os.geteuid())
    with pytest.raises(kind) as told:
        opened(path)
    assert str(told.value) == str(foretold.value)


def test_it_listens_in_a_file_that_only_its_owner_opens(path: Path) -> None:
    local = opened(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    closed(local)
    local.remove()
    assert not path.exists()
    local.remove()


def test_its_folder_is_made_private(path: Path) -> None:
    local = opened(path.parent / "new" / "o.sock")
    assert stat.S_IMODE(local.path.parent.stat().st_mode) == 0o700
    closed(local)


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o777])
def test_a_folder_that_others_enter_is_refused(path: Path, mode: int) -> None:
    path.parent.chmod(mode)
    refused(path, ConfigError, "chmod 700")
    assert not path.exists()


def test_a_path_of_104_bytes_and_more_is_refused_and_one_of_103_works(short_folder: Path) -> None:
    folder = short_folder
    room = 103 - len(os.fsencode(folder)) - 1
    local = opened(folder / ("a" * room))
    closed(local)
    refused(folder / ("a" * (room + 1)), ConfigError, r"104 bytes, at most 103")
    refused(folder / ("ü" * (room // 2 + 1)), ConfigError, "choose a shorter")


def test_what_a_killed_daemon_left_is_replaced(path: Path) -> None:
    closed(opened(path))
    left = path.stat().st_ino
    local = opened(path)
    assert path.exists()
    assert local.file[1] == path.stat().st_ino
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert left is not None
    closed(local)


def test_looking_makes_and_removes_nothing(path: Path) -> None:
    check_local_socket(str(path.parent / "new" / "o.sock"), os.geteuid())
    assert list(path.parent.iterdir()) == []
    closed(opened(path))
    check_local_socket(str(path), os.geteuid())
    assert path.exists(), "a killed daemon's, for the next daemon to replace"


def test_a_folder_of_another_user_and_the_home_of_nobody_are_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="its folder belongs to uid"):
        check_local_socket(str(path), os.geteuid() + 1)
    refused(Path("~no-such-user/o.sock"), ConfigError, r"server\.socket")


def test_one_with_a_living_owner_is_refused_and_left_alone(path: Path) -> None:
    first = opened(path)
    refused(path, PortTaken, "Another process listens")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    closed(first)


def test_anything_else_at_its_place_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("precious")
    refused(path, ConfigError, "something else than a socket")
    assert path.read_text() == "precious"
    path.unlink()
    target = path.with_name("target")
    target.write_text("precious")
    path.symlink_to(target)
    refused(path, ConfigError, "something else than a socket")
    assert target.read_text() == "precious"


def test_only_our_own_file_is_removed(path: Path) -> None:
    local = opened(path)
    path.unlink()
    path.write_text("another's")
    local.remove()
    assert path.read_text() == "another's"
    closed(local)
