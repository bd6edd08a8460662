"""The heap of the GNU C library, arranged so that what is freed can go back to the system."""

import ctypes

from omlxd.units import MiB

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""As in glibc's malloc.h."""
FREE_END = 1 * MiB
"""What a heap may keep at its end."""
OWN_MAPPING = 1 * MiB
"""From this size on a block is a mapping of its own, gone when freed."""


def bound_free_ends() -> None:
    """Let no heap keep more than ``FREE_END``: to be called before much is allocated.

    Every thread may have a heap, and ``malloc_trim`` returns the free end of the first one only.
    By itself glibc raises both thresholds with what it sees freed, up to 64 MiB an end: a good part
    of a small model's weights, and most of the cache of requests that ended. One heap for all
    threads would cost a twentieth of the tokens per second; this costs nothing that shows. A C
    library without ``mallopt`` has no such heaps.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        # To set either ends the growth of both.
        mallopt(ctypes.c_int(M_MMAP_THRESHOLD), ctypes.c_int(OWN_MAPPING))
        mallopt(ctypes.c_int(M_TRIM_THRESHOLD), ctypes.c_int(FREE_END))


def trim() -> bool:
    """Give free pages back; False where the C library cannot."""
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is None:  # musl has none
        return False
    malloc_trim(ctypes.c_size_t(0))
    return True
