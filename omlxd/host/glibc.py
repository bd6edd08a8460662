"""The heap of the GNU C library, arranged so that what is freed can go back to the system."""

import ctypes

from omlxd.units import MiB

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""As in glibc's malloc.h."""
FREE_END = 32 * MiB
"""What a heap may keep at its end when all before it is in use or free."""
OWN_MAPPING = 32 * MiB
"""From this size on a block is a mapping of its own, gone when freed; the most glibc allows."""


def bound_free_ends() -> None:
    """Let no heap keep more than ``FREE_END``: to be called before much is allocated.

    ``malloc_trim`` returns the free end of the first heap only, and every thread may have one of
    its own, whose end glibc by itself lets grow to 64 MiB: a good part of a small model's weights.
    One heap for all would cost a twentieth of the tokens per second. A C library without
    ``mallopt`` has no such heaps.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        # To set either ends its growth, so both are set.
        mallopt(ctypes.c_int(M_MMAP_THRESHOLD), ctypes.c_int(OWN_MAPPING))
        mallopt(ctypes.c_int(M_TRIM_THRESHOLD), ctypes.c_int(FREE_END))


def trim() -> bool:
    """Give free pages back; False where the C library cannot."""
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is None:  # musl has none
        return False
    malloc_trim(ctypes.c_size_t(0))
    return True
