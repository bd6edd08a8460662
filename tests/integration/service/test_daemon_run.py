"""One run of the daemon in its data folder, by hand and supervised: what it says, how it exits."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omlxd import instance
from omlxd.instance import Healthy, ask_health
from omlxd.service import exits
from omlxd.service.exits import Ending
from tests.integration.service.conftest import SUPPORT

Until = Callable[[Callable[[], bool]], None]


class Runner:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.state = home / "state"
        self.processes: list[subprocess.Popen[str]] = []
        home.mkdir()
        self.config("")

    def config(self, text: str) -> None:
        (self.home / "config.toml").write_text(text)

    def start(
        self, *words: str, prepare: Callable[[], None] | None = None
    ) -> subprocess.Popen[str]:
        config = self.home / "config.toml"
        process = subprocess.Popen(
            [sys.executable, SUPPORT / "health_job.py", "serve", *words, "--config", str(config)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path.cwd()), "OMLXD_HOME": str(self.home)},
            preexec_fn=prepare,
        )
        self.processes.append(process)
        return process

    def end_of(self, *words: str) -> tuple[int, str]:
        """Exit code and words of a run that ends by itself."""
        process = self.start(*words)
        _, said = process.communicate(timeout=60)
        return process.returncode, said

    def is_up(self) -> bool:
        record = instance.running(self.state)
        return record is not None and record.url is not None


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(tmp_path / "home")
    yield runner
    for process in runner.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize(("words", "code"), [((), 1), (("--supervised",), 0)])
def test_a_second_daemon_on_the_folder_names_the_first(
    runner: Runner, until: Until, words: tuple[str, ...], code: int
) -> None:
    first = runner.start()
    until(runner.is_up)
    got, said = runner.end_of(*words)
    assert got == code
    assert f"already running on the data folder {runner.state}: pid {first.pid} at http://" in said
    ended = exits.read_last_exit(runner.state)
    assert ended is not None
    assert (ended.error, ended.code, ended.pid != first.pid) == ("already_running", code, True)


def test_kill_nine_leaves_a_stale_record_that_the_next_one_takes_over(
    runner: Runner, until: Until
) -> None:
    first = runner.start()
    until(runner.is_up)
    first.kill()
    first.wait(60)
    left = instance.read_record(runner.state)
    assert left is not None
    assert instance.running(runner.state) is None
    second = runner.start()
    until(runner.is_up)
    record = instance.running(runner.state)
    assert record is not None
    assert (record.pid, record.instance_id != left.instance_id) == (second.pid, True)


@pytest.mark.parametrize(("words", "code"), [((), 78), (("--supervised",), 0)])
def test_a_wrong_configuration(runner: Runner, words: tuple[str, ...], code: int) -> None:
    runner.config("prot = 1\nhots = 2\n")
    got, said = runner.end_of(*words)
    assert got == code
    assert [line.split(": ")[-2] for line in said.splitlines()] == ["hots", "prot"]
    ended = exits.read_last_exit(runner.state)
    assert ended is not None
    assert (ended.ending, ended.supervised) == (Ending.CONFIG, bool(words))


@pytest.mark.parametrize(("words", "code"), [((), 1), (("--supervised",), 0)])
def test_a_taken_port(runner: Runner, taken_port: int, words: tuple[str, ...], code: int) -> None:
    """T65."""
    runner.config(f"port = {taken_port}\n")
    got, said = runner.end_of(*words)
    assert got == code
    assert f"Port {taken_port} on 127.0.0.1 is taken by" in said
    assert instance.read_record(runner.state) is None


@pytest.mark.parametrize("words", [(), ("--supervised",)])
def test_a_fault_asks_for_a_restart(runner: Runner, words: tuple[str, ...]) -> None:
    runner.config('mode = "broken"\n')
    assert runner.end_of(*words)[0] == 75


def test_a_native_abort_is_a_signal_and_leaves_its_record(runner: Runner) -> None:
    runner.config('mode = "abort"\n')
    assert runner.end_of("--supervised")[0] == -signal.SIGABRT
    assert instance.read_record(runner.state) is not None


def test_a_stop_is_zero_and_starts_the_count_anew(runner: Runner, until: Until) -> None:
    process = runner.start("--supervised")
    until(runner.is_up)
    assert (runner.state / "starts.json").exists()
    process.terminate()
    assert process.wait(60) == 0
    assert not (runner.state / "starts.json").exists()
    assert instance.read_record(runner.state) is None


def test_too_many_starts_end_with_zero_and_the_last_reason(runner: Runner) -> None:
    runner.config('mode = "broken"\n')
    codes = [runner.end_of("--supervised")[0] for _ in range(6)]
    got, said = runner.end_of("--supervised")
    assert (codes, got) == ([75] * 6, 0)
    assert "The last time: the engine died" in said


def test_a_disk_that_takes_nothing_more_does_not_stop_the_daemon(
    runner: Runner, until: Until, tmp_path: Path
) -> None:
    """No file can grow: neither log nor record can be written, and requests are served."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    runner.config(f"port = {port}\n")

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    process = runner.start("--supervised", prepare=full)
    until(lambda: isinstance(ask_health(f"http://127.0.0.1:{port}"), Healthy))
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "omlxd.log cannot be written" in said


def test_an_oversized_stderr_file_of_launchd_is_trimmed_at_a_supervised_start(
    runner: Runner, until: Until
) -> None:
    logs = runner.home / "logs"
    logs.mkdir()
    path = logs / "launchd-stderr.log"
    path.write_text("noise\n" * 1_000_000 + "Fatal Python error: Aborted\n")
    runner.start("--supervised")
    until(runner.is_up)
    assert path.stat().st_size <= 1024 * 1024
    assert path.read_text().endswith("noise\nFatal Python error: Aborted\n")
