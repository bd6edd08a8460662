"""The Unix socket's file: private, short enough, replaced only when nobody is behind it."""

import os
import socket
import stat
from pathlib import Path

import pytest

from omlxd.daemon.local_socket import LocalSocket, open_local_socket
from omlxd.errors import ConfigError, PortTaken


@pytest.fixture
def path(short_folder: Path) -> Path:
    return short_folder / "omlxd.sock"


def opened(path: Path) -> LocalSocket:
    return open_local_socket(str(path))


def closed(local: LocalSocket) -> None:
    local.listener.close()


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
    with pytest.raises(ConfigError, match="chmod 700"):
        opened(path)
    assert not path.exists()


def test_a_path_of_104_bytes_and_more_is_refused_and_one_of_103_works(short_folder: Path) -> None:
    folder = short_folder
    room = 103 - len(os.fsencode(folder)) - 1
    local = opened(folder / ("a" * room))
    closed(local)
    with pytest.raises(ConfigError, match=r"105 bytes, at most 104"):
        opened(folder / ("a" * (room + 1)))
    with pytest.raises(ConfigError, match="choose a shorter"):
        opened(folder / ("ü" * (room // 2 + 1)))


def test_what_a_killed_daemon_left_is_replaced(path: Path) -> None:
    closed(opened(path))
    left = path.stat().st_ino
    local = opened(path)
    assert path.exists()
    assert local.file[1] == path.stat().st_ino
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert left is not None
    closed(local)


def test_one_with_a_living_owner_is_refused_and_left_alone(path: Path) -> None:
    first = opened(path)
    with pytest.raises(PortTaken, match="Another process listens"):
        opened(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    closed(first)


def test_anything_else_at_its_place_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(ConfigError, match="something else than a socket"):
        opened(path)
    assert path.read_text() == "precious"
    path.unlink()
    target = path.with_name("target")
    target.write_text("precious")
    path.symlink_to(target)
    with pytest.raises(ConfigError, match="something else than a socket"):
        opened(path)
    assert target.read_text() == "precious"


def test_only_our_own_file_is_removed(path: Path) -> None:
    local = opened(path)
    path.unlink()
    path.write_text("another's")
    local.remove()
    assert path.read_text() == "another's"
    closed(local)
