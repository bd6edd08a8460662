"""The few C calls into Darwin. Each returns bytes, or the reason of its failure.

Every buffer is larger than any kernel structure: ``proc_pid_rusage`` takes no size argument, and a
newer kernel must not write past the end.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Any

from omlxd.host.darwin_structs import (
    HOST_VM_INFO64,
    HOST_VM_REV1_WORDS,
    TASK_VM_INFO,
    TASK_VM_REV4_WORDS,
    Failed,
    Filled,
)

LIBSYSTEM = "/usr/lib/libSystem.B.dylib"
BUFFER_BYTES = 4096
"""HOST_INFO_MAX of the kernel, 1024 words; the largest structure is 464 bytes."""

_Buffer = ctypes.Array[ctypes.c_char]


class DarwinKernel:
    """Opened on first use; raises OSError when the library cannot be loaded."""

    def __init__(
        self,
        library: str = LIBSYSTEM,
        allocate: Callable[[int], _Buffer] = ctypes.create_string_buffer,
    ) -> None:
        self._library = ctypes.CDLL(library, use_errno=True)
        self._allocate = allocate
        self._host_port: int | None = None

    def page_size(self) -> int | Failed:
        """The kernel's page size in bytes, which is the unit of the host counters.

        Under Rosetta the page size of this process is smaller.
        """
        size = self._variable("vm_kernel_page_size", ctypes.c_size_t)
        if size is None or size <= 0 or size & (size - 1):
            return Failed("vm_kernel_page_size", "absent" if size is None else f"is {size}")
        return size

    def host_counters(self) -> Filled | Failed:
        """``host_statistics64(HOST_VM_INFO64)``; asks for REV1."""
        call = self._function("host_statistics64", ctypes.c_int)
        port = self._own_host_port()
        if call is None or port is None:
            return Failed("host_statistics64", "absent")
        return self._array_call("host_statistics64", call, port, HOST_VM_INFO64, HOST_VM_REV1_WORDS)

    def task_vm_info(self) -> Filled | Failed:
        """``task_info(TASK_VM_INFO)`` of this process; asks for REV4."""
        call = self._function("task_info", ctypes.c_int)
        task = self._variable("mach_task_self_", ctypes.c_uint32)
        if call is None or task is None:
            return Failed("task_info", "absent")
        return self._array_call("task_info", call, task, TASK_VM_INFO, TASK_VM_REV4_WORDS)

    def resource_usage(self, flavor: int, size: int) -> bytes | Failed:
        """``proc_pid_rusage`` of this process: the ``size`` bytes of that flavor."""
        call = self._function("proc_pid_rusage", ctypes.c_int)
        if call is None:
            return Failed("proc_pid_rusage", "absent")
        buffer = self._allocate(BUFFER_BYTES)
        if call(ctypes.c_int(os.getpid()), ctypes.c_int(flavor), buffer) != 0:
            return Failed("proc_pid_rusage", _errno_text())
        return buffer.raw[:size]

    def sysctl(self, name: str) -> bytes | Failed:
        """The value of ``name``, with as many bytes as the kernel reports."""
        call = self._function("sysctlbyname", ctypes.c_int)
        if call is None:
            return Failed(name, "sysctlbyname is absent")
        buffer = self._allocate(BUFFER_BYTES)
        size = ctypes.c_size_t(BUFFER_BYTES)
        if call(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
            return Failed(name, _errno_text())
        return buffer.raw[: min(size.value, BUFFER_BYTES)]

    def relieve_malloc(self) -> int | Failed:
        """Ask every malloc zone to give back all free pages. Returns the bytes given back."""
        call = self._function("malloc_zone_pressure_relief", ctypes.c_size_t)
        if call is None:
            return Failed("malloc_zone_pressure_relief", "absent")
        return int(call(None, ctypes.c_size_t(0)))

    def _array_call(
        self, name: str, call: Any, port: int, flavor: int, words: int
    ) -> Filled | Failed:
        buffer = self._allocate(BUFFER_BYTES)
        count = ctypes.c_uint32(words)
        result = call(ctypes.c_uint32(port), ctypes.c_int(flavor), buffer, ctypes.byref(count))
        if result != 0:
            return Failed(name, f"kern_return {result}")
        # Ignore fields that a newer revision may have added.
        filled = min(count.value, words)
        return Filled(buffer.raw[: 4 * filled], filled)

    def _own_host_port(self) -> int | None:
        # Each call of mach_host_self adds a reference to the port, so call it once.
        if self._host_port is None:
            call = self._function("mach_host_self", ctypes.c_uint32)
            self._host_port = None if call is None else int(call())
        return self._host_port

    def _function(self, name: str, result: type[Any]) -> Any | None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return None
        function.restype = result
        return function

    def _variable(self, name: str, kind: type[Any]) -> int | None:
        try:
            return int(kind.in_dll(self._library, name).value)
        except ValueError:
            return None


def _errno_text() -> str:
    code = ctypes.get_errno()
    return errno.errorcode.get(code, f"errno {code}")
