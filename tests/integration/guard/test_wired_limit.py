"""The one place that wires memory, on the real runtime with its call to the driver replaced."""

import threading
from collections.abc import Callable

import pytest

from omlxd.backend.mlx.backend import import_mlx_lm


def on_a_thread(work: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    if failed:
        raise failed[0]


@pytest.mark.parametrize(("wired", "calls"), [(None, []), (5, [5, 0])])
def test_it_is_set_once_at_start_and_undone_at_stop(
    monkeypatch: pytest.MonkeyPatch, wired: int | None, calls: list[int]
) -> None:
    """[R] called once, at start, and undone at stop; off unless asked for."""
    import_mlx_lm()
    from omlxd.backend.mlx import runtime

    seen: list[int] = []

    def set_wired_limit(limit: int) -> int:
        seen.append(limit)
        return 0

    def work() -> None:
        started = runtime.Runtime(None, wired)
        assert seen == calls[:1]
        started.stop()

    monkeypatch.setattr("omlxd.backend.mlx.runtime.mx.set_wired_limit", set_wired_limit)
    on_a_thread(work)
    assert seen == calls


def test_a_limit_that_the_system_refuses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import_mlx_lm()
    from omlxd.backend.mlx import runtime

    seen: list[int] = []

    def refuse(limit: int) -> int:
        seen.append(limit)
        raise ValueError("larger than the system's")

    monkeypatch.setattr("omlxd.backend.mlx.runtime.mx.set_wired_limit", refuse)
    on_a_thread(lambda: runtime.Runtime(None, 5).stop())
    assert seen == [5]
