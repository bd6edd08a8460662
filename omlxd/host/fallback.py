"""Where the numbers come from when the platform's own source fails."""

import os

import psutil


def psutil_available() -> int | None:
    """Bytes that psutil calls available, None when it cannot tell either."""
    try:
        return int(psutil.virtual_memory().available)
    except (psutil.Error, OSError, RuntimeError):
        # RuntimeError is what its C layer raises when the kernel's call fails.
        return None


def physical_memory() -> int:
    """Installed memory in bytes by sysconf(3). Raises ValueError or OSError when unknown."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size <= 0:
        raise OSError("sysconf does not know the size of the memory")
    return size
