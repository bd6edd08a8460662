"""What the doctor says of memory, port, reach, daemon and guard."""

import errno
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from omlxd.doctor import network
from omlxd.doctor.finding import Verdict, failed, ok, warn
from omlxd.doctor.memory import check_memory, wired
from omlxd.doctor.network import check_guard, check_health, check_port, check_reach, check_socket
from omlxd.errors import ConfigError, PortTaken
from omlxd.host.protocol import Host
from omlxd.instance import Healthy, InstanceRecord, Unhealthy
from omlxd.policy.ceiling import DynamicFilter, compute_ceilings
from omlxd.policy.readings import MemoryReading, OsPressure
from omlxd.policy.tiers import GuardPolicy
from omlxd.service.job import Account
from omlxd.units import GiB, MiB

READING = MemoryReading(
    taken_at=100.0,
    total=32 * GiB,
    footprint=GiB,
    free=20 * GiB,
    inactive=2 * GiB,
    active=4 * GiB,
    wired=3 * GiB,
    external=GiB,
    compressor=0,
    device_cap=24 * GiB,
    os_pressure=OsPressure.NORMAL,
)
RUNNING = InstanceRecord(
    instance_id="i-1",
    pid=42,
    process_started=1.0,
    started_at=1.0,
    version="1.0",
    host="127.0.0.1",
    port=8484,
)


class StillHost:
    """A host that says one thing."""

    name = "darwin"

    def __init__(self, reading: MemoryReading, limit: int | None = 0) -> None:
        self._reading = reading
        self._limit = limit

    def read(self, now: float) -> MemoryReading:
        return self._reading

    def footprint(self) -> int | None:
        return self._reading.footprint

    def footprints(self) -> tuple[int | None, int | None]:
        return self._reading.footprint, self._reading.graphics_footprint

    def total_memory(self) -> int:
        return self._reading.total

    def wired_limit(self) -> int | None:
        return self._limit

    def release_free_memory(self) -> int | None:
        return None


def memory_of(reading: MemoryReading, limit: int | None = 0) -> dict[str, Verdict]:
    found = check_memory(lambda: StillHost(reading, limit), GuardPolicy(), 100.0)
    return {finding.name: finding.verdict for finding in found}


def unreadable() -> Host:
    raise OSError("no /proc")


def test_memory_says_how_much_models_may_take() -> None:
    assert memory_of(READING)["memory"] is Verdict.OK
    (finding,) = check_memory(unreadable, GuardPolicy(), 100.0)
    assert finding.verdict is Verdict.FAIL
    assert "no /proc" in finding.text


def test_pressure_a_full_machine_and_a_failed_source_are_warnings() -> None:
    pressed = replace(READING, os_pressure=OsPressure.CRITICAL)
    full = replace(READING, free=0, inactive=0, active=0, external=0)
    blind = replace(READING, degraded=("sysctl failed",))
    assert memory_of(pressed)["memory"] is Verdict.WARN
    assert memory_of(full)["memory"] is Verdict.WARN
    assert memory_of(blind)["memory sources"] is Verdict.WARN


def test_a_guard_that_is_off_is_a_warning_with_the_way_back() -> None:
    found = check_memory(lambda: StillHost(READING), GuardPolicy(enabled=False), 100.0)
    assert found[0].verdict is Verdict.WARN
    assert found[0].remedy == "omlxd guard set --enable"


def test_the_wired_limit_gets_the_safe_advice() -> None:
    ceilings, _ = compute_ceilings(
        replace(READING, device_cap=21 * GiB),
        GuardPolicy(),
        DynamicFilter(GuardPolicy().tier),
        None,
        100.0,
    )
    (low,) = wired(ceilings, 0)
    assert low.verdict is Verdict.WARN
    assert "sudo sysctl iogpu.wired_limit_mb=" in low.text
    risky = wired(replace(ceilings, device_cap=32 * GiB), 32 * GiB)
    assert [finding.verdict for finding in risky] == [Verdict.WARN]
    fine = wired(replace(ceilings, device_cap=ceilings.static), ceilings.static // MiB * MiB)
    assert [finding.verdict for finding in fine] == [Verdict.OK]
    assert wired(replace(ceilings, device_cap=None), None) == []


def port_of(port: int, running: InstanceRecord | None, error: OSError | None = None) -> Verdict:
    return check_port(
        "127.0.0.1",
        port,
        running,
        serviced=True,
        bind=lambda *_: error,
        holder=lambda *_: "nginx (pid 7)",
    ).verdict


def test_a_port_is_free_ours_or_taken_by_somebody_named() -> None:
    assert port_of(8484, None) is Verdict.OK
    assert port_of(0, None) is Verdict.OK
    assert port_of(8484, RUNNING, OSError("in use")) is Verdict.OK
    assert port_of(9999, RUNNING) is Verdict.WARN
    assert port_of(8484, None, OSError(errno.EADDRINUSE, "Address in use")) is Verdict.FAIL
    taken = check_port(
        "127.0.0.1",
        8484,
        None,
        serviced=True,
        bind=lambda *_: OSError(errno.EADDRINUSE, "Address in use"),
        holder=lambda *_: "nginx (pid 7)",
    )
    assert "nginx (pid 7)" in taken.text
    nowhere = OSError(errno.EADDRNOTAVAIL, "No such address here")
    bad = check_port(
        "10.0.0.1", 1, None, serviced=True, bind=lambda *_: nowhere, holder=lambda *_: "nginx"
    )
    assert (bad.verdict, "held by" in bad.text) == (Verdict.FAIL, False)
    assert port_of(8484, None, socket.gaierror(-2, "unknown")) is Verdict.FAIL


@pytest.mark.parametrize(
    ("error", "alone", "beside_ours"),
    [
        (None, Verdict.OK, Verdict.WARN),
        (PortTaken("it is taken"), Verdict.FAIL, Verdict.OK),
        (ConfigError(["server.socket: chmod 700"]), Verdict.FAIL, Verdict.FAIL),
    ],
)
def test_the_unix_socket_is_judged_as_serve_judges_it(
    monkeypatch: pytest.MonkeyPatch,
    error: Exception | None,
    alone: Verdict,
    beside_ours: Verdict,
) -> None:
    asked = []

    def check(name: str, uid: int) -> None:
        asked.append((name, uid))
        if error is not None:
            raise error

    monkeypatch.setattr(network, "check_local_socket", check)
    assert check_socket("/d/o.sock", None, serviced=True).verdict is alone
    assert check_socket("/d/o.sock", RUNNING, serviced=True).verdict is beside_ours
    check_socket("~/o.sock", None, Account("ann", 501, 20, Path("/Users/ann")), serviced=True)
    assert asked[-1] == ("/Users/ann/o.sock", 501)


@pytest.mark.parametrize(
    ("host", "any_key", "verdict"),
    [
        ("127.0.0.1", False, Verdict.OK),
        ("::1", False, Verdict.OK),
        ("localhost", False, Verdict.OK),
        ("0.0.0.0", False, Verdict.FAIL),
        ("0.0.0.0", True, Verdict.WARN),
        ("box.example", False, Verdict.FAIL),
    ],
)
def test_a_far_reach_without_a_key_fails(host: str, any_key: bool, verdict: Verdict) -> None:
    assert check_reach(host, any_key=any_key).verdict is verdict


def test_the_daemon_is_absent_healthy_hanging_or_another_one() -> None:
    assert check_health(None, None, serviced=True).verdict is Verdict.WARN
    assert check_health(RUNNING, Healthy("i-1", "1.0"), serviced=True).verdict is Verdict.OK
    assert check_health(RUNNING, Healthy("i-2", "1.0"), serviced=True).verdict is Verdict.FAIL
    assert check_health(RUNNING, Unhealthy("it hangs"), serviced=True).verdict is Verdict.FAIL
    assert check_health(RUNNING, None, serviced=True).verdict is Verdict.FAIL


def test_the_guard_of_the_running_daemon_speaks_for_itself() -> None:
    bound = {"binding": "dynamic", "remedy": "Close other apps."}
    assert check_guard({"enabled": True, "pressure_level": "ok", "ceiling": bound}) == ok(
        "guard", "memory pressure is ok (bound: dynamic)"
    )
    assert check_guard({"enabled": True, "pressure_level": "hard", "ceiling": bound}) == warn(
        "guard", "memory pressure is hard (bound: dynamic)", "Close other apps."
    )
    assert check_guard({"enabled": False, "pressure_level": "ok"}).verdict is Verdict.WARN
    held = {**bound, "enforced": False, "admission_paused": True, "pause_reason": "Why."}
    assert check_guard({"enabled": True, "pressure_level": "ok", "ceiling": held}) == warn(
        "guard",
        "memory pressure is ok (bound: dynamic), and nothing is done about it (monitor mode), "
        "new requests wait",
        "Why.",
    )
    assert check_guard({}).verdict is Verdict.WARN


def test_only_failures_fail() -> None:
    assert not failed([ok("a", ""), warn("b", "")])


@pytest.mark.parametrize("serviced", [True, False])
def test_a_remedy_names_the_service_only_where_it_has_the_daemon(
    monkeypatch: pytest.MonkeyPatch, serviced: bool
) -> None:
    """A daemon with ``--port`` was started by hand, and ``omlxd service`` may not work here."""
    monkeypatch.setattr(network, "check_local_socket", lambda name, uid: None)
    for finding in (
        check_port("127.0.0.1", 9999, RUNNING, serviced=serviced, holder=lambda *_: ""),
        check_socket("/d/o.sock", RUNNING, serviced=serviced),
        check_health(RUNNING, None, serviced=serviced),
        check_health(None, None, serviced=serviced),
    ):
        assert finding.remedy is not None
        assert ("omlxd service" in finding.remedy) is serviced
