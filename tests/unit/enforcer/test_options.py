from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from omlxd.enforcer.options import WiredLimit, wired_limit, wired_limit_at_start
from omlxd.policy.tiers import Tier
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


def test_nothing_is_wired_unless_asked_for_and_the_machine_is_known() -> None:
    machine: Any = SimpleNamespace(wired_limit=lambda: 50 * GiB, total_memory=lambda: 64 * GiB)

    def unreadable() -> Any:
        raise OSError("no sysctl")

    assert wired_limit_at_start(WiredLimit.OFF, Tier.BALANCED, unreadable) is None
    assert wired_limit_at_start(WiredLimit.AUTO, Tier.BALANCED, lambda: machine) == 50 * GiB
    with capture_logs() as logs:
        assert wired_limit_at_start(WiredLimit.AUTO, Tier.BALANCED, unreadable) is None
    assert [log["event"] for log in logs] == ["wired_limit_unknown"]
