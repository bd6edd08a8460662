"""The reading of a Mac, from the kernel's bytes to the numbers of a decision."""

import errno
import struct
from collections.abc import Callable
from typing import Generic, TypeVar

import pytest

from omlxd.host.darwin import DarwinHost
from omlxd.host.protocol import RuntimeMemory
from omlxd.policy.readings import OsPressure, Source
from omlxd.units import GiB, MiB
from tests.support.darwin_kernel import PAGE, RELEASES, Release, StandInKernel

CAP = 24 * GiB
T = TypeVar("T")


def never_asked() -> int | None:
    raise AssertionError("psutil is only asked when the kernel fails")


class Counted(Generic[T]):
    """A function that counts its calls."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self.times = 0

    def __call__(self) -> T:
        self.times += 1
        return self._function()


def mac(kernel: StandInKernel, available: Callable[[], int | None] = never_asked) -> DarwinHost:
    runtime = RuntimeMemory(working_set=lambda: CAP)
    return DarwinHost(runtime, open_kernel=kernel.open, available=available)


@pytest.mark.parametrize("release", RELEASES, ids=lambda r: r.name)
def test_every_release_gives_the_same_reading(kernel: StandInKernel, release: Release) -> None:
    kernel.be(release)
    reading = mac(kernel).read(50.0)
    assert reading.taken_at == 50.0
    assert reading.total == 32 * GiB
    assert reading.footprint == 6 * GiB
    assert reading.graphics_footprint == 5 * GiB
    assert reading.free == 100_000 * PAGE
    assert reading.inactive == 500_000 * PAGE
    assert reading.active == 600_000 * PAGE
    assert reading.wired == 700_000 * PAGE
    assert reading.external == (250_000 - 20_000) * PAGE
    assert reading.compressor == 80_000 * PAGE
    assert reading.device_cap == CAP
    assert reading.os_pressure is OsPressure.NORMAL
    assert reading.swap_used == GiB
    assert reading.counted_footprint == 6 * GiB
    assert reading.counted_graphics == 5 * GiB
    assert reading.degraded == ()
    assert kernel.ask("suspicious") == 0


def test_each_number_names_its_source_and_time(kernel: StandInKernel) -> None:
    reading = mac(kernel).read(50.0)
    assert reading.sources["total"] == Source("hw.memsize", 50.0)
    assert reading.sources["footprint"] == Source("proc_pid_rusage V4", 50.0)
    assert reading.sources["graphics_footprint"] == Source("task_info ledger", 50.0)
    assert reading.sources["device_cap"] == Source("recommended working set", 50.0)
    for field in ("free", "inactive", "active", "wired", "external", "compressor"):
        assert reading.sources[field] == Source("host_statistics64", 50.0)
    known = {name for name in reading.__slots__ if getattr(reading, name) is not None}
    assert known - {"taken_at", "sources", "degraded"} == set(reading.sources)


def test_nothing_is_called_before_the_first_reading(kernel: StandInKernel) -> None:
    opened = Counted(kernel.open)
    host = DarwinHost(open_kernel=opened)
    assert opened.times == 0
    host.read(1.0)
    host.read(2.0)
    assert opened.times == 1
    assert kernel.ask("host_self_calls") == 1


# ---- the rate limit -------------------------------------------------------------------------


def test_the_host_wide_call_is_made_at_most_once_a_second(kernel: StandInKernel) -> None:
    host = mac(kernel)
    for now in (10.0, 10.2, 10.999):
        host.read(now)
    assert kernel.ask("host_calls") == 1
    host.read(11.0)
    assert kernel.ask("host_calls") == 2


def test_reused_counters_keep_their_time_while_usage_is_fresh(kernel: StandInKernel) -> None:
    """Within the dynamic term, own footprint and host counters are of one instant: a second look
    in the same tick refreshes usage, not the host counters."""
    host = mac(kernel)
    host.read(10.0)
    kernel.rusage(phys_footprint=2 * GiB)
    kernel.task(graphics_footprint=GiB)
    kernel.vm(free=300_000)
    second = host.read(10.5)
    assert second.footprint == 2 * GiB
    assert second.graphics_footprint == GiB
    assert second.free == 100_000 * PAGE
    assert second.sources["free"] == Source("host_statistics64", 10.0)
    assert second.counted_footprint == 6 * GiB
    assert second.counted_graphics == 5 * GiB
    assert second.sources["counted_footprint"].taken_at == 10.0
    third = host.read(11.0)
    assert third.free == 300_000 * PAGE
    assert third.counted_footprint == 2 * GiB
    assert third.sources["free"].taken_at == 11.0


def test_the_kernels_copy_for_callers_over_its_quota_is_known_as_old(
    kernel: StandInKernel,
) -> None:
    """Other tools use up the quota: the call succeeds, but returns the previous bytes."""
    host = mac(kernel)
    host.read(10.0)
    kernel.tell("budget", 0)
    kernel.vm(free=1)
    kernel.rusage(phys_footprint=20 * GiB)
    stale = host.read(11.0)
    assert kernel.ask("host_calls") == 2
    assert kernel.ask("fresh_calls") == 1
    assert stale.free == 100_000 * PAGE
    assert stale.sources["free"] == Source("host_statistics64", 10.0)
    assert stale.counted_footprint == 6 * GiB
    assert stale.footprint == 20 * GiB
    assert stale.degraded == ()
    kernel.tell("budget", 10)
    fresh = host.read(12.0)
    assert fresh.free == PAGE
    assert fresh.sources["free"].taken_at == 12.0


def test_a_copy_made_for_another_tool_in_the_same_second_is_as_good_as_fresh(
    kernel: StandInKernel,
) -> None:
    host = mac(kernel)
    kernel.tell("budget", 2)
    kernel.at(10.0)
    host.read(10.0)
    kernel.at(11.1)
    kernel.vm(free=200_000)
    other_tool = kernel.open()
    for _ in range(3):
        other_tool.host_counters()
    kernel.at(11.9)
    kernel.vm(free=1)
    reading = host.read(11.9)
    assert kernel.ask("fresh_calls") == 3
    assert reading.free == 200_000 * PAGE
    assert reading.sources["free"].taken_at == 11.9


def test_an_answer_that_never_changes_is_reported(kernel: StandInKernel) -> None:
    host = mac(kernel)
    host.read(10.0)
    kernel.tell("budget", 0)
    assert host.read(15.0).degraded == ()
    old = host.read(16.0)
    assert any("its numbers are old" in line for line in old.degraded)
    assert old.sources["free"].taken_at == 10.0
    kernel.tell("budget", 10)
    assert host.read(17.0).degraded == ()


def test_a_copy_that_was_never_filled_is_not_a_machine_without_free_memory(
    kernel: StandInKernel,
) -> None:
    kernel.tell("budget", 0)
    reading = mac(kernel, lambda: 3 * GiB).read(1.0)
    assert reading.free == 3 * GiB
    assert "host_statistics64: an empty answer" in reading.degraded[0]


def test_a_clock_that_went_back_does_not_stop_the_calls(kernel: StandInKernel) -> None:
    host = mac(kernel)
    host.read(1000.0)
    kernel.vm(free=7)
    assert host.read(5.0).free == 7 * PAGE


def test_a_failing_host_call_is_not_repeated_within_the_second(kernel: StandInKernel) -> None:
    psutil_asked = Counted(lambda: 3 * GiB)
    host = mac(kernel, psutil_asked)
    kernel.tell("fail_host", 5)
    for now in (10.0, 10.4, 10.8):
        host.read(now)
    assert kernel.ask("host_calls") == 1
    assert psutil_asked.times == 1
    kernel.tell("fail_host", 0)
    recovered = host.read(11.0)
    assert recovered.free == 100_000 * PAGE
    assert recovered.degraded == ()


# ---- what fails ------------------------------------------------------------------------------


def test_failing_host_statistics_are_replaced_by_psutils_available_memory(
    kernel: StandInKernel,
) -> None:
    """[R] A reading that fails degrades: host statistics -> psutil's available memory as "free"
    (inactive and other apps 0) -> static ceiling; [+] each fallback is visible."""
    kernel.tell("fail_host", 5)
    reading = mac(kernel, lambda: 3 * GiB).read(1.0)
    assert reading.free == 3 * GiB
    assert (reading.inactive, reading.active, reading.external) == (0, 0, 0)
    assert (reading.wired, reading.compressor) == (None, None)
    assert reading.sources["free"] == Source("psutil", 1.0)
    assert reading.footprint == 6 * GiB
    assert reading.degraded == (
        "host_statistics64: kern_return 5: psutil's available memory counts as free",
    )


def test_without_psutil_either_free_memory_is_unknown_and_the_total_still_read(
    kernel: StandInKernel,
) -> None:
    """[R] If nothing can be read but total RAM, the ceiling is static and the daemon runs on."""
    kernel.tell("fail_host", 5)
    kernel.tell("fail_task", 5)
    kernel.tell("fail_rusage", errno.EPERM)
    for name in ("iogpu.wired_limit_mb", "kern.memorystatus_vm_pressure_level", "vm.swapusage"):
        kernel.sysctl(name, error=errno.EPERM)
    host = DarwinHost(open_kernel=kernel.open, available=lambda: None)
    reading = host.read(1.0)
    assert reading.total == 32 * GiB
    known = {name for name in reading.__slots__ if getattr(reading, name) is not None}
    assert known == {"taken_at", "total", "sources", "degraded"}
    assert reading.degraded == (
        "task_info: kern_return 5: no graphics footprint",
        "proc_pid_rusage: EPERM: the footprint is unknown",
        "host_statistics64: kern_return 5; psutil cannot tell either: free memory is unknown",
        "iogpu.wired_limit_mb: EPERM: the device cap is unknown",
        "kern.memorystatus_vm_pressure_level: EPERM: the system's pressure level is unknown",
        "vm.swapusage: EPERM: swap is unknown",
    )


def test_an_old_revision_leaves_file_backed_pages_unknown_and_says_so(
    kernel: StandInKernel,
) -> None:
    kernel.be(Release("older", vm_words=24, task_words=42))
    reading = mac(kernel).read(1.0)
    assert reading.free == 100_000 * PAGE
    assert reading.external is None
    assert reading.compressor is None
    assert reading.graphics_footprint is None
    assert "external" not in reading.sources
    assert any("file-backed pages unknown" in line for line in reading.degraded)


def test_counters_above_the_memory_of_the_machine_are_not_believed(
    kernel: StandInKernel,
) -> None:
    """A page size four times too large would show memory that does not exist."""
    kernel.tell("page_size", 4 * PAGE)
    reading = mac(kernel, lambda: 3 * GiB).read(1.0)
    assert reading.free == 3 * GiB
    assert "more memory than the machine has" in reading.degraded[0]


def test_an_unknown_page_size_makes_the_counters_unusable(kernel: StandInKernel) -> None:
    kernel.tell("page_size", 0)
    reading = mac(kernel, lambda: 3 * GiB).read(1.0)
    assert reading.sources["free"].name == "psutil"
    assert "vm_kernel_page_size: is 0" in reading.degraded[0]


def test_a_kernel_without_the_fourth_rusage_flavor_is_asked_for_the_first(
    kernel: StandInKernel,
) -> None:
    kernel.be(Release("older", vm_words=38, task_words=89, rusage_flavors=0))
    reading = mac(kernel).read(1.0)
    assert reading.footprint == 6 * GiB
    assert reading.sources["footprint"].name == "proc_pid_rusage V0"
    assert reading.degraded == ()


def test_footprint_and_graphics_are_read_together_between_two_readings(
    kernel: StandInKernel,
) -> None:
    assert mac(kernel).footprints() == (6 * GiB, 5 * GiB)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ESRCH])
def test_without_rusage_the_footprint_is_that_of_task_info(
    kernel: StandInKernel, code: int
) -> None:
    kernel.tell("fail_rusage", code)
    kernel.task(phys_footprint=7 * GiB)
    reading = mac(kernel).read(1.0)
    assert reading.footprint == 7 * GiB
    assert reading.sources["footprint"].name == "task_info"
    name = errno.errorcode[code]
    assert reading.degraded == (f"proc_pid_rusage: {name}: the footprint is taken from task_info",)


def test_a_footprint_of_zero_is_unknown_and_never_an_empty_process(kernel: StandInKernel) -> None:
    kernel.rusage(phys_footprint=0)
    kernel.task(phys_footprint=0)
    reading = mac(kernel).read(1.0)
    assert reading.footprint is None
    assert reading.degraded == ("proc_pid_rusage: a footprint of 0: the footprint is unknown",)


def test_the_total_comes_from_sysconf_when_the_kernel_does_not_say(
    kernel: StandInKernel,
) -> None:
    kernel.sysctl("hw.memsize", error=errno.EPERM)
    host = mac(kernel, lambda: None)
    reading = host.read(1.0)
    assert reading.total > 0
    assert reading.sources["total"].name == "sysconf"
    assert "hw.memsize cannot be read: the total comes from sysconf" in reading.degraded
    assert host.total_memory() == reading.total


def test_the_total_is_asked_again_after_a_failure_and_then_kept(kernel: StandInKernel) -> None:
    kernel.sysctl("hw.memsize", error=errno.EPERM)
    host = mac(kernel, lambda: None)
    host.read(1.0)
    kernel.sysctl("hw.memsize", struct.pack("<Q", 64 * GiB))
    assert host.read(2.0).total == 64 * GiB
    kernel.sysctl("hw.memsize", error=errno.EPERM)
    assert host.read(3.0).total == 64 * GiB


# ---- cap, pressure, swap, giving back ----------------------------------------------------------


def test_the_kernels_wired_limit_is_the_device_cap_when_the_user_set_one(
    kernel: StandInKernel,
) -> None:
    kernel.sysctl("iogpu.wired_limit_mb", struct.pack("<i", 28_672))
    host = mac(kernel)
    reading = host.read(1.0)
    assert reading.device_cap == 28_672 * MiB
    assert reading.sources["device_cap"].name == "iogpu.wired_limit_mb"
    assert host.wired_limit() == 28_672 * MiB


def test_the_drivers_default_is_zero_and_no_limit_at_all_is_unknown(
    kernel: StandInKernel,
) -> None:
    assert mac(kernel).wired_limit() == 0
    kernel.sysctl("iogpu.wired_limit_mb", error=errno.ENOENT)
    assert mac(kernel).wired_limit() is None
    reading = mac(kernel).read(1.0)
    assert reading.device_cap == CAP
    assert reading.degraded == (
        "iogpu.wired_limit_mb: ENOENT: the device cap is the runtime's recommended working set",
    )


def test_a_change_of_the_wired_limit_is_seen_at_the_next_reading(kernel: StandInKernel) -> None:
    host = mac(kernel)
    host.read(1.0)
    kernel.sysctl("iogpu.wired_limit_mb", struct.pack("<i", 1024))
    assert host.read(1.1).device_cap == GiB


@pytest.mark.parametrize(
    ("level", "pressure"),
    [(1, OsPressure.NORMAL), (2, OsPressure.WARNING), (4, OsPressure.CRITICAL), (3, None)],
)
def test_the_pressure_level_is_the_kernels(
    kernel: StandInKernel, level: int, pressure: OsPressure | None
) -> None:
    kernel.sysctl("kern.memorystatus_vm_pressure_level", struct.pack("<i", level))
    reading = mac(kernel).read(1.0)
    assert reading.os_pressure is pressure
    assert (reading.degraded == ()) is (pressure is not None)


def test_no_swap_is_zero_and_a_short_answer_is_unknown(kernel: StandInKernel) -> None:
    kernel.sysctl("vm.swapusage", bytes(32))
    assert mac(kernel).read(1.0).swap_used == 0
    kernel.sysctl("vm.swapusage", bytes(24))
    reading = mac(kernel).read(1.0)
    assert reading.swap_used is None
    assert reading.degraded == ("vm.swapusage: 24 bytes: swap is unknown",)


def test_malloc_gives_back_what_it_says(kernel: StandInKernel) -> None:
    host = mac(kernel)
    kernel.tell("relief", 300 * MiB)
    assert host.release_free_memory() == 300 * MiB
    kernel.tell("relief", 0)
    assert host.release_free_memory() == 0
