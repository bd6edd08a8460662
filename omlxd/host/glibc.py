"""The heap of the GNU C library, arranged so that what is freed can go back to the system."""

import ctypes

M_ARENA_MAX = -8
"""As in glibc's malloc.h."""


def keep_one_heap() -> None:
    """Have all threads share the first heap: to be called before any other thread allocates.

    Of the heaps that glibc gives to further threads, ``malloc_trim`` never returns the free end,
    which may be 64 MiB of a model's weights. To share costs a twentieth of the tokens per second of
    MLX's CPU build. A C library without ``mallopt`` has no such heaps.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(ctypes.c_int(M_ARENA_MAX), ctypes.c_int(1))


def trim() -> bool:
    """Give free pages back; False where the C library cannot."""
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is None:  # musl has none
        return False
    malloc_trim(ctypes.c_size_t(0))
    return True
