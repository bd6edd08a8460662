import pytest

from omlxd.enforcer.options import WiredLimit
from omlxd.enforcer.wiring import wired_limit
from omlxd.units import GiB

STATIC = 56 * GiB


@pytest.mark.parametrize(
    ("wish", "kernel", "wired"),
    [
        (WiredLimit.OFF, 60 * GiB, None),
        (WiredLimit.AUTO, 0, None),
        (WiredLimit.AUTO, None, None),
        (WiredLimit.AUTO, 60 * GiB, STATIC),
        (WiredLimit.AUTO, 50 * GiB, 50 * GiB),
        (40 * GiB, 0, 40 * GiB),
        (60 * GiB, 0, STATIC),
        (40 * GiB, None, None),
    ],
)
def test_wiring_is_off_unless_asked_for_and_auto_follows_a_raised_limit_only(
    wish: WiredLimit | int, kernel: int | None, wired: int | None
) -> None:
    """[R] "auto" only when the kernel limit was raised by the user, with min(static, kernel
    limit)."""
    assert wired_limit(wish, kernel, STATIC) == wired
