"""The quickstart's daemon ends with it, at any signal and when the output loses its reader."""

import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import child_daemon
import pytest


class Process:
    """Like Popen; signals come during the methods in ``interrupted``."""

    def __init__(self, *interrupted: str) -> None:
        self.interrupted = list(interrupted)
        self.calls: list[str] = []

    def __call__(self, *_: object, **__: object) -> "Process":
        self.came("start")
        return self

    def came(self, call: str) -> None:
        if call in self.interrupted:
            self.interrupted.remove(call)
            signal.raise_signal(signal.SIGHUP if call != "wait" else signal.SIGINT)
        self.calls.append(call)

    def poll(self) -> int | None:
        self.came("poll")
        return None

    def terminate(self) -> None:
        self.came("terminate")

    def kill(self) -> None:
        self.came("kill")

    def wait(self, limit: float | None = None) -> int:
        self.came("wait")
        return 0


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The handlers of quickstart; afterwards those of pytest again."""
    before = {number: signal.getsignal(number) for number in child_daemon.ENDING}
    child_daemon.heed(child_daemon.leave)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(process: Process, monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    monkeypatch.setattr(subprocess, "Popen", process)
    with child_daemon.child(["daemon"], log):
        process.came("work")


@pytest.mark.parametrize("gone", [errno.EPIPE, errno.EIO])
def test_the_daemon_is_stopped_though_nobody_reads_what_is_said(
    gone: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A closed pipe, and a closed terminal."""

    def say(text: str) -> None:
        raise OSError(gone, os.strerror(gone))

    monkeypatch.setattr(child_daemon, "say", say)
    process = Process()
    run(process, monkeypatch, tmp_path / "log")
    assert process.calls == ["start", "work", "poll", "terminate", "wait"]


@pytest.mark.parametrize(
    "when", [("start",), ("work",), ("start", "poll"), ("work", "poll"), ("work", "terminate")]
)
def test_the_daemon_is_stopped_whenever_signals_come(
    when: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = Process(*when)
    with pytest.raises(KeyboardInterrupt):
        run(process, monkeypatch, tmp_path / "log")
    assert process.calls[-3:] == ["poll", "terminate", "wait"]


def test_a_signal_between_the_end_and_the_stop_does_not_keep_the_daemon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heed = child_daemon.heed
    late = iter([signal.SIGHUP])

    def interrupted(handler: Any) -> None:
        if process.calls[-1:] == ["work"] and (number := next(late, None)):
            signal.raise_signal(number)
        heed(handler)

    process = Process()
    monkeypatch.setattr(child_daemon, "heed", interrupted)
    run(process, monkeypatch, tmp_path / "log")
    assert process.calls[-3:] == ["poll", "terminate", "wait"]


def test_a_signal_that_another_thread_took_ends_the_wait_for_the_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python handles a signal when a call returns, but the wait for a child does not return."""
    limits: list[float] = []

    def sleep(limit: float) -> None:
        limits.append(limit)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(time, "sleep", sleep)
    process = Process()
    with pytest.raises(KeyboardInterrupt):
        child_daemon.wait_for(process)  # type: ignore[arg-type]
    assert limits == [0.5]
    assert "wait" not in process.calls


def test_no_signal_on_the_way_out_is_complained_of(capfd: pytest.CaptureFixture[str]) -> None:
    """Two at once: Python handles the second after the first has changed the handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, child_daemon.ENDING)
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, child_daemon.ENDING)
    child_daemon.stop(Process())  # type: ignore[arg-type]
    assert "race condition" not in capfd.readouterr().err


def test_ctrl_c_while_the_daemon_stops_kills_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = Process("work", "wait")
    with pytest.raises(KeyboardInterrupt):
        run(process, monkeypatch, tmp_path / "log")
    assert process.calls[-4:] == ["poll", "terminate", "kill", "wait"]


def test_a_log_is_added_to_and_its_tail_is_of_the_last_daemon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "log"
    for line in ("first", "second"):
        run(Process(), monkeypatch, log)
        with log.open("a") as out:
            out.write(f"{line}\n")
    assert "first" in log.read_text()
    assert child_daemon.log_tail(log) == "second"
