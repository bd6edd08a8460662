"""Makes the heap of the GNU C library give freed memory back to the system."""

import ctypes

from omlxd.units import MiB

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""As in glibc's malloc.h."""
FREE_END = 1 * MiB
"""Bytes that a heap may keep at its end."""
OWN_MAPPING = 1 * MiB
"""Bytes. A block of this size or more gets its own mapping, which ends when it is freed."""


def bound_free_ends() -> None:
    """Let no heap keep more than ``FREE_END``. Call it before much is allocated.

    Each thread may have a heap, and ``malloc_trim`` gives back only the free end of the first one.
    Without this call glibc raises both thresholds when large blocks are freed, up to 64 MiB per
    end: a good part of a small model's weights, or most of the cache of ended requests. One heap
    for all threads would cost 5 % of the tokens per second; this costs nothing measurable.
    A C library without ``mallopt`` has no such heaps.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        # Setting either threshold stops the growth of both.
        mallopt(ctypes.c_int(M_MMAP_THRESHOLD), ctypes.c_int(OWN_MAPPING))
        mallopt(ctypes.c_int(M_TRIM_THRESHOLD), ctypes.c_int(FREE_END))


def trim() -> bool:
    """Give free pages back to the system. False when the C library cannot."""
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is None:  # musl has none
        return False
    malloc_trim(ctypes.c_size_t(0))
    return True
