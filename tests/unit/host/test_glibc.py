"""The memory that a thread frees goes back to the system, at any place in the heap."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from omlxd.units import KiB, MiB

FREED = 48 * MiB
BLOCK = 512 * KiB
"""Small enough to be in a heap, with or without the thresholds."""

FREE_IN_A_THREAD = f"""
import ctypes, sys, threading
from omlxd.host import glibc

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


def free_a_model():
    # As after a larger tensor: from now on blocks up to that size come from the heap.
    libc.free(libc.malloc({30 * MiB}))
    # A list that grew among the blocks would keep them off the heap's end.
    blocks = [None] * {FREED // BLOCK}
    for i in range(len(blocks)):
        blocks[i] = libc.malloc({BLOCK})
        libc.memset(blocks[i], 1, {BLOCK})
    for block in blocks:
        libc.free(block)
    glibc.trim()
    sys.stdout.write(open("/proc/self/status").read())


if sys.argv[1] == "bounded":
    glibc.bound_free_ends()
thread = threading.Thread(target=free_a_model)
thread.start()
thread.join()
"""


def anonymous(heaps: str) -> int:
    """Resident bytes of a process whose thread has freed and trimmed everything."""
    tuned = ("MALLOC_", "GLIBC_TUNABLES")
    ended = subprocess.run(
        [sys.executable, "-c", FREE_IN_A_THREAD, heaps],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith(tuned)},
    )
    line = next(line for line in ended.stdout.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_the_free_end_of_a_threads_heap_is_given_back() -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's /proc")
    assert anonymous("bounded") < FREED // 2


def test_without_that_it_would_stay() -> None:
    """Shows that the script above would detect a heap that keeps its memory."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("needs the GNU C library")
    assert anonymous("as they are") >= FREED
