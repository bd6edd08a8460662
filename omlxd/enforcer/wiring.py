"""How much memory the GPU driver is told to keep resident: nothing, unless it was asked for."""

from omlxd.enforcer.options import WiredLimit


def wired_limit(wish: WiredLimit | int, kernel_limit: int | None, static: int) -> int | None:
    """Bytes to wire at start; None leaves the driver alone.

    ``kernel_limit`` is what the user gave the kernel in bytes: 0 is the driver's default, None
    is unknown or no such thing here. ``static`` is RAM less the tier's reserve.
    """
    match wish:
        case WiredLimit.OFF:
            return None
        case WiredLimit.AUTO:
            # An unraised limit is the driver's own; wiring up to it is what starves the system.
            return min(static, kernel_limit) if kernel_limit else None
        case _:
            return None if kernel_limit is None else min(wish, static)
