"""The C calls against a fake kernel that writes the same bytes as each release."""

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path

import pytest

from omlxd.host.darwin_calls import BUFFER_BYTES
from omlxd.host.darwin_structs import Failed, Filled
from omlxd.units import GiB
from tests.support.darwin_kernel import PAGE, RELEASES, Release, StandInKernel

own_library_only = pytest.mark.skipif(
    sys.platform == "darwin", reason="a Mac finds the missing symbol in libSystem"
)
every_release = pytest.mark.parametrize("release", RELEASES, ids=lambda r: r.name)


@every_release
def test_host_counters_are_asked_by_the_count_that_every_kernel_knows(
    kernel: StandInKernel, release: Release
) -> None:
    kernel.be(release)
    answer = kernel.open().host_counters()
    assert isinstance(answer, Filled)
    assert answer.words == 38
    assert len(answer.data) == 152
    assert struct.unpack_from("<I", answer.data, 136) == (250_000,)
    assert kernel.ask("host_count_asked") == 38
    assert kernel.ask("suspicious") == 0


@every_release
def test_task_info_is_asked_by_a_count_that_every_kernel_knows(
    kernel: StandInKernel, release: Release
) -> None:
    kernel.be(release)
    answer = kernel.open().task_vm_info()
    assert isinstance(answer, Filled)
    assert answer.words == 86
    assert struct.unpack_from("<q", answer.data, 272) == (5 * GiB,)
    assert kernel.ask("task_count_asked") == 86
    assert kernel.ask("suspicious") == 0


@every_release
def test_the_kernel_writes_the_documented_bytes_and_nothing_behind_them(
    kernel: StandInKernel, release: Release
) -> None:
    kernel.be(release)
    calls = kernel.open()
    calls.host_counters()
    calls.task_vm_info()
    calls.resource_usage(4, 296)
    calls.resource_usage(0, 96)
    calls.sysctl("vm.swapusage")
    for buffer, size in zip(kernel.buffers, (152, 344, 296, 96, 32), strict=True):
        assert len(buffer) == BUFFER_BYTES
        assert kernel.untouched_after(buffer, size)


@pytest.mark.parametrize("overrun", [8, 312, 2048])
def test_a_kernel_that_writes_more_than_it_says_harms_nothing(
    kernel: StandInKernel, overrun: int
) -> None:
    """The 296-byte rusage structure written into a shorter buffer once ended in a SIGBUS."""
    kernel.tell("scribble", overrun)
    calls = kernel.open()
    host, task = calls.host_counters(), calls.task_vm_info()
    usage = calls.resource_usage(4, 296)
    assert isinstance(host, Filled)
    assert isinstance(task, Filled)
    assert isinstance(usage, bytes)
    assert (len(host.data), len(task.data), len(usage)) == (152, 344, 296)
    assert b"\xee" * 8 not in host.data + task.data + usage
    for buffer, size in zip(kernel.buffers, (152, 344, 296), strict=True):
        assert kernel.untouched_after(buffer, size + overrun)


def test_an_older_revision_is_read_no_further_than_it_was_filled(kernel: StandInKernel) -> None:
    kernel.be(Release("older", vm_words=24, task_words=42))
    calls = kernel.open()
    host, task = calls.host_counters(), calls.task_vm_info()
    assert isinstance(host, Filled)
    assert isinstance(task, Filled)
    assert (host.words, len(host.data)) == (24, 96)
    assert (task.words, len(task.data)) == (42, 168)
    assert bytes([0xA5]) * 4 not in host.data + task.data


def test_a_returned_count_above_the_one_asked_is_not_believed(kernel: StandInKernel) -> None:
    kernel.tell("return_vm_words", 62)
    kernel.tell("return_task_words", 1_000_000)
    calls = kernel.open()
    host, task = calls.host_counters(), calls.task_vm_info()
    assert isinstance(host, Filled)
    assert isinstance(task, Filled)
    assert (host.words, task.words) == (38, 86)


def test_the_host_port_is_fetched_once_however_often_it_is_used(kernel: StandInKernel) -> None:
    calls = kernel.open()
    for _ in range(20):
        assert isinstance(calls.host_counters(), Filled)
    assert kernel.ask("host_self_calls") == 1
    assert kernel.ask("host_calls") == 20


@pytest.mark.parametrize("result", [4, 5, -307, 268435459])
def test_a_mach_error_is_an_answer_that_names_it(kernel: StandInKernel, result: int) -> None:
    kernel.tell("fail_host", result)
    kernel.tell("fail_task", result)
    calls = kernel.open()
    assert calls.host_counters() == Failed("host_statistics64", f"kern_return {result}")
    assert calls.task_vm_info() == Failed("task_info", f"kern_return {result}")


@pytest.mark.parametrize("code", [errno.EPERM, errno.ESRCH, errno.EINVAL])
def test_an_errno_is_an_answer_that_names_it(kernel: StandInKernel, code: int) -> None:
    kernel.tell("fail_rusage", code)
    kernel.sysctl("hw.memsize", b"\0" * 8, error=code)
    calls = kernel.open()
    ctypes.set_errno(errno.EIO)  # from an earlier call; it must not be reported for this one
    assert calls.resource_usage(4, 296) == Failed("proc_pid_rusage", errno.errorcode[code])
    assert calls.sysctl("hw.memsize") == Failed("hw.memsize", errno.errorcode[code])


def test_a_flavor_that_the_kernel_does_not_know_is_refused(kernel: StandInKernel) -> None:
    kernel.be(Release("older", vm_words=38, task_words=89, rusage_flavors=0))
    calls = kernel.open()
    assert calls.resource_usage(4, 296) == Failed("proc_pid_rusage", "EINVAL")
    assert isinstance(calls.resource_usage(0, 96), bytes)


def test_a_name_that_sysctl_does_not_know_is_refused(kernel: StandInKernel) -> None:
    assert kernel.open().sysctl("no.such.name") == Failed("no.such.name", "ENOENT")


def test_sysctl_answers_with_as_many_bytes_as_the_kernel_has(kernel: StandInKernel) -> None:
    calls = kernel.open()
    memory, swap = calls.sysctl("hw.memsize"), calls.sysctl("vm.swapusage")
    assert memory == struct.pack("<Q", 32 * GiB)
    assert isinstance(swap, bytes)
    assert len(swap) == 32


def test_the_page_is_the_kernels_and_not_this_process(kernel: StandInKernel) -> None:
    assert kernel.open().page_size() == PAGE
    assert os.sysconf("SC_PAGE_SIZE") != PAGE or os.uname().sysname == "Darwin"
    kernel.tell("page_size", 4096)
    assert kernel.open().page_size() == 4096


@pytest.mark.parametrize("size", [0, 12345])
def test_a_page_size_that_is_none_is_refused(kernel: StandInKernel, size: int) -> None:
    kernel.tell("page_size", size)
    assert kernel.open().page_size() == Failed("vm_kernel_page_size", f"is {size}")


def test_every_malloc_zone_is_asked_for_all_it_can_give(kernel: StandInKernel) -> None:
    kernel.tell("relief", 5 * GiB)
    assert kernel.open().relieve_malloc() == 5 * GiB
    assert kernel.ask("relief_zone_given") == 0
    assert kernel.ask("relief_goal") == 0


@own_library_only
@pytest.mark.parametrize(
    ("symbol", "method", "why"),
    [
        ("host_statistics64", "host_counters", Failed("host_statistics64", "absent")),
        ("mach_host_self", "host_counters", Failed("host_statistics64", "absent")),
        ("task_info", "task_vm_info", Failed("task_info", "absent")),
        ("mach_task_self_", "task_vm_info", Failed("task_info", "absent")),
        ("vm_kernel_page_size", "page_size", Failed("vm_kernel_page_size", "absent")),
        (
            "malloc_zone_pressure_relief",
            "relieve_malloc",
            Failed("malloc_zone_pressure_relief", "absent"),
        ),
    ],
)
def test_a_symbol_that_the_library_lacks_is_an_answer(
    kernel: StandInKernel, tmp_path: Path, symbol: str, method: str, why: Failed
) -> None:
    calls = kernel.without(symbol, tmp_path).open()
    assert getattr(calls, method)() == why


@own_library_only
def test_a_library_without_rusage_and_sysctl_still_answers(
    kernel: StandInKernel, tmp_path: Path
) -> None:
    no_rusage = kernel.without("proc_pid_rusage", tmp_path).open()
    assert no_rusage.resource_usage(4, 296) == Failed("proc_pid_rusage", "absent")
    no_sysctl = kernel.without("sysctlbyname", tmp_path).open()
    assert no_sysctl.sysctl("hw.memsize") == Failed("hw.memsize", "sysctlbyname is absent")
