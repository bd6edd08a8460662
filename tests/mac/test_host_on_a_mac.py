"""The Darwin layer on a real Mac: what the stand-in's tests assert, asserted of the real kernel."""

import ctypes
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from omlxd.host.clock import continuous_clock
from omlxd.host.darwin import DarwinHost
from omlxd.host.darwin_calls import LIBSYSTEM, DarwinKernel
from omlxd.host.darwin_structs import Failed, Filled, decode_task_footprint
from omlxd.policy.readings import MemoryReading
from omlxd.units import GiB, MiB

pytestmark = pytest.mark.mac


@pytest.fixture(scope="module")
def kernel() -> DarwinKernel:
    return DarwinKernel()


@pytest.fixture
def reading() -> MemoryReading:
    return DarwinHost().read(continuous_clock())


def sysctl(name: str) -> int:
    """What the system's own tool says."""
    return int(subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True).stdout)


@contextmanager
def touched(size: int) -> Iterator[None]:
    block = bytearray(os.urandom(MiB)) * (size // MiB)
    yield
    del block


def test_every_source_answers(reading: MemoryReading) -> None:
    # A virtual Mac has no such limit.
    assert [line for line in reading.degraded if not line.startswith("iogpu.")] == []
    for field in ("footprint", "free", "inactive", "active", "wired", "external", "compressor"):
        assert getattr(reading, field) is not None
    assert reading.os_pressure is not None
    assert reading.swap_used is not None


def test_the_total_is_the_installed_memory(reading: MemoryReading) -> None:
    assert reading.total == sysctl("hw.memsize")
    assert reading.sources["total"].name == "hw.memsize"


def test_the_counters_fit_the_machine(reading: MemoryReading) -> None:
    assert reading.free is not None
    assert reading.active is not None
    assert reading.inactive is not None
    assert reading.wired is not None
    assert reading.compressor is not None
    assert reading.external is not None
    parts = reading.free + reading.active + reading.inactive + reading.wired + reading.compressor
    assert 0.7 * reading.total < parts < 1.05 * reading.total
    assert reading.external <= reading.active + reading.inactive
    assert reading.wired > 256 * MiB


def test_the_counters_agree_with_psutil(reading: MemoryReading) -> None:
    theirs = psutil.virtual_memory()
    assert reading.active == pytest.approx(theirs.active, rel=0.1, abs=GiB // 2)
    assert reading.wired == pytest.approx(theirs._asdict()["wired"], rel=0.1, abs=GiB // 2)


def test_the_kernel_fills_the_revisions_that_are_asked_for(kernel: DarwinKernel) -> None:
    host, task = kernel.host_counters(), kernel.task_vm_info()
    assert isinstance(host, Filled)
    assert isinstance(task, Filled)
    assert (host.words, task.words) == (38, 86)


def test_nothing_is_written_behind_the_documented_bytes() -> None:
    buffers = []

    def allocate(size: int) -> ctypes.Array[ctypes.c_char]:
        buffers.append(ctypes.create_string_buffer(b"\xa5" * size, size))
        return buffers[-1]

    calls = DarwinKernel(allocate=allocate)
    calls.host_counters()
    calls.task_vm_info()
    calls.resource_usage(4, 296)
    calls.resource_usage(0, 96)
    calls.sysctl("vm.swapusage")
    for buffer, size in zip(buffers, (152, 344, 296, 96, 32), strict=True):
        assert buffer.raw[size:] == b"\xa5" * (len(buffer) - size)


def test_the_own_footprint_is_positive_and_both_calls_agree(
    reading: MemoryReading, kernel: DarwinKernel
) -> None:
    assert reading.footprint is not None
    assert 5 * MiB < reading.footprint < reading.total
    task = kernel.task_vm_info()
    assert isinstance(task, Filled)
    assert decode_task_footprint(task) == pytest.approx(reading.footprint, abs=64 * MiB)


def test_the_footprint_follows_what_the_process_touches() -> None:
    host = DarwinHost()
    before = host.read(1.0).footprint
    with touched(512 * MiB):
        during = host.read(2.0).footprint
    after = host.read(3.0).footprint
    assert before is not None
    assert during is not None
    assert after is not None
    assert during - before > 400 * MiB
    assert during - after > 400 * MiB


def test_a_thousand_readings_leak_no_port_and_no_memory() -> None:
    library = ctypes.CDLL(LIBSYSTEM)
    library.mach_host_self.restype = ctypes.c_uint32
    port = ctypes.c_uint32(library.mach_host_self())
    task = ctypes.c_uint32.in_dll(library, "mach_task_self_")

    def references() -> int:
        count = ctypes.c_uint32()
        send_right = ctypes.c_int(0)
        assert library.mach_port_get_refs(task, port, send_right, ctypes.byref(count)) == 0
        return count.value

    host = DarwinHost()
    host.read(0.0)
    ports, memory = references(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(1, 1000):
        host.read(float(i))
    assert references() == ports
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 16 * MiB


def test_readings_take_microseconds() -> None:
    host = DarwinHost()
    host.read(0.0)
    started = time.perf_counter()
    for i in range(100):
        host.read(i / 1000)
    assert (time.perf_counter() - started) / 100 < 0.002


def test_the_wired_limit_is_what_sysctl_says() -> None:
    limit = DarwinHost().wired_limit()
    if limit is None:
        pytest.skip("this Mac has no iogpu.wired_limit_mb (a virtual machine, or no Apple GPU)")
    assert limit == sysctl("iogpu.wired_limit_mb") * MiB


def test_the_page_is_the_kernels(kernel: DarwinKernel) -> None:
    page = kernel.page_size()
    assert not isinstance(page, Failed)
    assert page in (4096, 16384)


def test_malloc_can_be_asked_to_give_back() -> None:
    released = DarwinHost().release_free_memory()
    assert released is not None
    assert released >= 0


def test_the_continuous_clock_counts_sleep_and_the_monotonic_one_does_not() -> None:
    library = ctypes.CDLL(LIBSYSTEM)

    class Timebase(ctypes.Structure):
        _fields_ = (("numerator", ctypes.c_uint32), ("denominator", ctypes.c_uint32))

    base = Timebase()
    library.mach_timebase_info(ctypes.byref(base))
    seconds = {}
    for name in ("mach_continuous_time", "mach_absolute_time"):
        function = getattr(library, name)
        function.restype = ctypes.c_uint64
        seconds[name] = function() * base.numerator / base.denominator / 1e9
    assert continuous_clock() == pytest.approx(seconds["mach_continuous_time"], abs=0.1)
    assert time.monotonic() == pytest.approx(seconds["mach_absolute_time"], abs=0.1)
