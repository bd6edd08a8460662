"""Which endings a supervisor may restart."""

import pytest

from omlxd.errors import (
    AlreadyRunning,
    ConfigError,
    EngineDied,
    OmlxdError,
    PortTaken,
    StateUnreadable,
)
from omlxd.service.exit_codes import PERMANENT, Ending, ending_of, exit_code


@pytest.mark.parametrize(
    ("error", "by_hand", "supervised"),
    [
        (None, 0, 0),
        (ConfigError(["port: must be a number"]), 78, 0),
        (PortTaken("taken"), 1, 0),
        (AlreadyRunning("running"), 1, 0),
        (EngineDied("dead"), 75, 75),
        (StateUnreadable("damaged"), 75, 75),
        (RuntimeError("a fault of ours"), 75, 75),
    ],
)
def test_an_error_has_its_code(error: BaseException | None, by_hand: int, supervised: int) -> None:
    """T65: KeepAlive restarts every non-zero exit, so what stays wrong exits 0."""
    ending = ending_of(error)
    assert exit_code(ending, supervised=False) == by_hand
    assert exit_code(ending, supervised=True) == supervised


def test_no_permanent_ending_asks_a_supervisor_for_a_restart() -> None:
    assert {exit_code(e, supervised=True) for e in PERMANENT} == {0}


def test_by_hand_no_error_looks_like_success() -> None:
    assert all(exit_code(e, supervised=False) != 0 for e in Ending if e is not Ending.STOPPED)


def test_every_error_of_the_tree_has_an_ending() -> None:
    assert ending_of(OmlxdError("any")) is Ending.BROKEN
