"""The doctor's findings about Python, MLX, the GPU and the memory."""

import json
import subprocess
from dataclasses import replace

from omlxd.doctor.finding import Verdict
from omlxd.doctor.machine import (
    RuntimeBroken,
    RuntimeInfo,
    check_gpu,
    check_memory,
    check_mlx,
    check_python,
    check_wired_limit,
    probe_runtime,
)
from omlxd.host.protocol import Host
from omlxd.policy.ceiling import DynamicFilter, compute_ceilings
from omlxd.policy.readings import MemoryReading, OsPressure
from omlxd.policy.tiers import GuardPolicy
from omlxd.service.interpreter import Interpreter
from omlxd.units import GiB, MiB

FACTS = RuntimeInfo("0.32.4", "0.32.2", 1, "Apple M4 Pro", 17 * GiB)
PYTHON = Interpreter(
    executable="/opt/tools/omlxd/bin/python",
    exists=True,
    prefix="/opt/tools/omlxd",
    base="/opt/python",
    system="Darwin",
    machine="arm64",
    user_home="/Users/me",
    project=None,
    throwaway=(),
)


def answered(code: int, stdout: str = "", stderr: str = "") -> RuntimeInfo | RuntimeBroken:
    return probe_runtime(
        lambda command, _: subprocess.CompletedProcess(command, code, stdout, stderr)
    )


def test_the_probe_reads_what_the_runtime_says() -> None:
    said = {"mlx": "0.32.4", "mlx_lm": "0.32.2", "gpus": 1, "device": "Apple M4 Pro"}
    text = "noise\n" + json.dumps({**said, "working_set": 17 * GiB, "more": 1}) + "\n"
    assert answered(0, text) == FACTS


def test_a_runtime_that_cannot_be_imported_says_why() -> None:
    found = answered(1, "", "Traceback\n  line\nImportError: no libmlx\n\n")
    assert found == RuntimeBroken("ImportError: no libmlx")
    finding = check_mlx(found)
    assert finding.verdict is Verdict.FAIL
    assert "no libmlx" in finding.text
    assert finding.remedy is not None
    assert check_gpu(found, "darwin") is None


def test_a_runtime_that_crashes_hangs_or_says_nothing_is_told_apart() -> None:
    assert answered(-6) == RuntimeBroken("importing it ends the process with signal 6")
    assert answered(3) == RuntimeBroken("importing it fails (code 3)")
    assert answered(0, "{}") == RuntimeBroken("importing it fails (code 0)")

    def hangs(command: object, limit: float) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired("python", limit)

    def absent(command: object, limit: float) -> subprocess.CompletedProcess[str]:
        raise OSError(2, "No such file")

    assert probe_runtime(hangs) == RuntimeBroken("importing it takes longer than 60 s")
    broken = probe_runtime(absent, "/gone/python")
    assert broken == RuntimeBroken("/gone/python cannot be started: No such file")


def test_no_gpu_is_a_failure_on_a_mac_and_a_warning_elsewhere() -> None:
    bare = replace(FACTS, gpus=0, device=None, working_set=None)
    for platform, verdict in (("darwin", Verdict.FAIL), ("linux", Verdict.WARN)):
        finding = check_gpu(bare, platform)
        assert finding is not None
        assert finding.verdict is verdict
    present = check_gpu(FACTS, "darwin")
    assert present is not None
    assert (present.verdict, present.text) == (Verdict.OK, "Apple M4 Pro, 17.0GB usable")


def test_python_under_rosetta_fails_and_a_newer_one_is_a_warning() -> None:
    assert check_python(PYTHON, (3, 12), "Python 3.12.1").verdict is Verdict.OK
    rosetta = check_python(replace(PYTHON, machine="x86_64"), (3, 12), "Python 3.12.1")
    assert rosetta.verdict is Verdict.FAIL
    assert "Rosetta" in rosetta.text
    assert check_python(PYTHON, (3, 99), "Python 3.99.0").verdict is Verdict.WARN


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


class StillHost:
    """A host with one fixed reading."""

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
    (low,) = check_wired_limit(ceilings, 0)
    assert low.verdict is Verdict.WARN
    assert "sudo sysctl iogpu.wired_limit_mb=" in low.text
    risky = check_wired_limit(replace(ceilings, device_cap=32 * GiB), 32 * GiB)
    assert [finding.verdict for finding in risky] == [Verdict.WARN]
    fine = check_wired_limit(
        replace(ceilings, device_cap=ceilings.static), ceilings.static // MiB * MiB
    )
    assert [finding.verdict for finding in fine] == [Verdict.OK]
    assert check_wired_limit(replace(ceilings, device_cap=None), None) == []
