"""Loopback addresses, the key of a run, and the limit of open files."""

import resource
import stat
from pathlib import Path

import pytest

from omlxd.api.key_file import LOCAL_FILE, Scope, digest
from omlxd.daemon.listeners import is_loopback, write_local_key
from omlxd.daemon.process import SPARE_FILES, raise_file_limit


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1"])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "fe80::1%en0"])
def test_other_addresses_are_not(host: str) -> None:
    assert not is_loopback(host)


def test_the_key_of_a_run_is_for_all_and_in_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    first = write_local_key(tmp_path)
    second = write_local_key(tmp_path)
    assert first is not None
    assert second is not None
    file = tmp_path / LOCAL_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert digest(file.read_text()) == second.digest != first.digest
    assert second.scope is Scope.ALL
    assert [path.name for path in tmp_path.iterdir()] == [LOCAL_FILE]


def test_a_folder_that_takes_nothing_costs_the_key_and_not_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    assert write_local_key(tmp_path / "state") is None


@pytest.mark.parametrize(
    ("limits", "after"),
    [
        ((256, resource.RLIM_INFINITY), 512 + SPARE_FILES),
        ((256, 800), 800),
        ((256, 256), 256),
        ((65536, 65536), 65536),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), resource.RLIM_INFINITY),
    ],
)
def test_the_file_limit_is_raised_as_far_as_it_goes_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], after: int
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: set_to.append(new))
    assert raise_file_limit(512) == after
    assert set_to == ([] if after == limits[0] else [(after, limits[1])])
