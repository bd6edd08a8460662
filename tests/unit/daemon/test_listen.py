"""The process that is reported as the holder of a port."""

from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest

from omlxd.daemon import listen

Machine = Callable[..., None]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine where pid 1, 2, ... listen on port 80 of these addresses."""

    def process(pid: int, ip: str) -> SimpleNamespace:
        connection = SimpleNamespace(
            status=psutil.CONN_LISTEN, laddr=SimpleNamespace(ip=ip, port=80)
        )
        return SimpleNamespace(
            pid=pid, name=lambda: f"process {pid}", net_connections=lambda kind: [connection]
        )

    def made(*addresses: str) -> None:
        found = [process(pid, ip) for pid, ip in enumerate(addresses, 1)]
        monkeypatch.setattr(psutil, "process_iter", lambda: iter(found))

    monkeypatch.setattr(listen, "_omlxd_instance", lambda host, port: None)
    return made


@pytest.mark.parametrize(
    ("host", "addresses", "pid"),
    [
        ("127.0.0.1", ["192.0.2.1", "::1", "127.0.0.1"], 3),
        ("127.0.0.1", ["::1", "0.0.0.0"], 2),
        ("127.0.0.1", ["::"], 1),
        ("127.0.0.1", ["0.0.0.0", "127.0.0.1"], 2),
        ("::1", ["0.0.0.0", "127.0.0.1", "::"], 3),
        ("0.0.0.0", ["::1", "127.0.0.1"], 2),
    ],
)
def test_the_process_at_this_address_is_named(
    processes: Machine, host: str, addresses: list[str], pid: int
) -> None:
    processes(*addresses)
    assert listen.holder(host, 80) == f"process {pid} (pid {pid})"


def test_a_process_at_another_address_is_not_blamed(processes: Machine) -> None:
    processes("192.0.2.1", "::1")
    assert listen.holder("127.0.0.1", 80) == "another process (this user may not see which)"
