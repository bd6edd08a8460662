"""The life of the process: start, port, configuration, signals, drain, death."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, payloads
from tests.support.raw_http import read_answer

SERVE = (sys.executable, "-m", "omlxd", "serve")
EOS_OFF: dict[str, Any] = {"logit_bias": {"0": -100, "1": -100, "2": -100}}
ENDLESS: dict[str, Any] = {"max_tokens": 50_000, "temperature": 0, **EOS_OFF}


def chat(model: Path | str, text: str = "hello", **fields: object) -> dict[str, object]:
    name = model if isinstance(model, str) else model.name
    return {"model": name, "messages": [{"role": "user", "content": text}], **fields}


class Stream(threading.Thread):
    """One streamed request read in a thread of its own."""

    def __init__(self, daemon: DaemonProcess, body: dict[str, object]) -> None:
        super().__init__(daemon=True)
        self._url, self._body = daemon.url, {**body, "stream": True}
        self.chunks: list[dict[str, object]] = []
        self.error: Exception | None = None
        self.first = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            for chunk in self._read():
                self.chunks.append(chunk)
                if len(self.chunks) > 3:
                    self.first.set()
        except (httpx.HTTPError, AssertionError) as error:
            self.error = error
        self.first.set()

    def _read(self) -> Iterator[dict[str, object]]:
        path = f"{self._url}/v1/chat/completions"
        with httpx.stream("POST", path, json=self._body, timeout=60) as answer:
            answer.raise_for_status()
            yield from payloads(answer.iter_lines())

    def ended(self, limit: float = 30) -> "Stream":
        self.join(limit)
        assert not self.is_alive(), "the stream goes on"
        return self


def test_the_port_listens_before_anything_heavy_and_health_answers(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path)
    daemon.spawn()
    try:
        daemon.until(lambda: daemon.instance() is not None, "no port")
        listening = time.monotonic() - daemon.started_at
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=5):
            pass
        assert httpx.get(f"{daemon.url}/health", timeout=60).status_code == 200
        answering = time.monotonic() - daemon.started_at
        # The figures to hold are 0.3 s and 1.5 s on a quiet machine; scripts/bench start has them.
        assert listening < 3
        assert answering < 10
    finally:
        daemon.stop()


def test_health_says_who_answers(daemon: DaemonProcess) -> None:
    health = daemon.get("/health")
    assert health["status"] in ("starting", "ok")
    assert health["instance_id"] == daemon.instance()["instance_id"]  # type: ignore[index]
    assert health["uptime"] >= 0
    assert daemon.get("/v1/version") == {"version": health["version"]}


def test_t65_a_taken_port_says_who_holds_it_and_exits_at_once(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    first = make_daemon()
    second = subprocess.run(
        [*SERVE, "--home", str(tmp_path / "two"), "--port", str(first.port)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode == 1
    assert str(first.port) in second.stderr
    assert f"another omlxd (pid {first.instance()['pid']}, instance " in second.stderr  # type: ignore[index]
    assert first.get("/health")["instance_id"] in second.stderr


def test_t65_a_foreign_holder_of_the_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        taken = subprocess.run(
            [*SERVE, "--home", str(tmp_path), "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert taken.returncode == 1
    assert f"Port {port}" in taken.stderr
    assert "pid" in taken.stderr
    assert "--port" in taken.stderr


def test_a_bad_configuration_reports_all_mistakes_and_exits_78(tmp_path: Path) -> None:
    """On stderr, and with them what is logged before there is a configuration for the log."""
    (tmp_path / "state").mkdir(mode=0o700)
    killed = {"instance_id": "x", "pid": 2**22 + 1, "started_at": 1.0, "version": "1"}
    (tmp_path / "state" / "instance.json").write_text(json.dumps(killed))
    (tmp_path / "config.toml").write_text("[server]\nport = 'x'\n[guard]\ntier = 'bold'\n")
    refused = subprocess.run(
        [*SERVE, "--home", str(tmp_path), "--log-level", "loud"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 78
    assert refused.stdout == ""
    for part in ("server.port", "guard.tier", "--log-level", "previous_instance_was_killed"):
        assert part in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("number", "opened"), [(signal.SIGINT, os.pipe), (signal.SIGHUP, os.openpty)]
)
def test_a_signal_stops_a_daemon_whose_log_has_lost_its_reader(
    tmp_path: Path, number: int, opened: Callable[[], tuple[int, int]]
) -> None:
    """As of ``omlxd serve 2>&1 | tee log``, where Ctrl-C ends tee first, or a closed terminal."""
    reader, writer = opened()
    daemon = DaemonProcess(tmp_path)
    daemon.spawn(output=writer)
    os.close(writer)
    try:
        daemon.until(lambda: daemon.instance() is not None, "it did not listen")
        os.close(reader)
        daemon.until(lambda: daemon.answers("/ready"), "it did not become ready")
        daemon.signal(number)
        assert daemon.wait() == 0
        assert not (tmp_path / "state/instance.json").exists()
        assert not (tmp_path / "state/local.key").exists()
    finally:
        daemon.stop()


def test_sigterm_with_nothing_to_do_exits_0_at_once(make_daemon: MakeDaemon, tiny: Path) -> None:
    """An upload that never ends and a connection that asks nothing are nothing to do."""
    daemon = make_daemon(models=(tiny,), config="[server]\nstop_limit = 600\n")
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {daemon.url[7:]}\r\n"
    head += "content-type: application/json\r\ncontent-length: 500\r\n\r\n{"
    address = ("127.0.0.1", daemon.port)
    with socket.create_connection(address) as upload, socket.create_connection(address):
        upload.sendall(head.encode())
        daemon.get("/health")  # by then the head has been read
        assert daemon.stop() == 0
        answer = read_answer(upload)
    assert (answer.status, answer.error["code"]) == (503, "shutting_down")
    assert not (daemon.home / "state/instance.json").exists()


def test_t73_a_running_stream_is_finished_before_the_daemon_leaves(
    make_daemon: MakeDaemon, tiny: Path
) -> None:
    daemon = make_daemon(models=(tiny,))
    stream = Stream(daemon, chat(tiny, max_tokens=600, temperature=0, **EOS_OFF))
    assert stream.first.wait(30)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    stream.ended()
    assert stream.error is None
    assert stream.chunks[-1]["choices"][0]["finish_reason"] == "length"  # type: ignore[index]


def test_t73_past_the_drain_limit_streams_end_with_an_error_and_the_exit_code_is_0(
    make_daemon: MakeDaemon, tiny: Path
) -> None:
    daemon = make_daemon(models=(tiny,), config="[server]\ndrain_limit = 0.5\n")
    stream = Stream(daemon, chat(tiny, **ENDLESS))
    assert stream.first.wait(30)
    began = time.monotonic()
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert time.monotonic() - began < 20, "sooner than without this limit"
    stream.ended()
    assert stream.error is None, "the stream was cut without [DONE]"
    assert stream.chunks[-1]["error"]["code"] == "shutting_down"  # type: ignore[index]


def test_while_draining_new_work_is_refused_and_health_answers(
    make_daemon: MakeDaemon, tiny: Path
) -> None:
    daemon = make_daemon(models=(tiny,))
    stream = Stream(daemon, chat(tiny, **ENDLESS))
    assert stream.first.wait(30)
    daemon.signal(signal.SIGHUP)
    daemon.until(lambda: daemon.get("/health")["status"] == "draining", "not draining")
    daemon.signal(signal.SIGHUP)  # of the shell, after the kernel's
    daemon.until(lambda: len(daemon.events("signal")) == 2, "the second signal was lost")
    refused = httpx.post(f"{daemon.url}/v1/chat/completions", json=chat(tiny))
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    assert "retry-after" in refused.headers
    daemon.signal(signal.SIGINT)  # a second signal: do not wait for the drain
    assert daemon.wait() == 0
    assert stream.ended().chunks[-1]["error"]["code"] == "shutting_down"  # type: ignore[index]
    assert len(daemon.events("drain_ended_by_signal")) == 1


def test_a_killed_daemon_leaves_nothing_that_stops_the_next(
    make_daemon: MakeDaemon, tiny: Path
) -> None:
    first = make_daemon(models=(tiny,))
    first.signal(signal.SIGKILL)
    first.wait()
    half_written = first.home / "state/.guard.json.abc.tmp"
    half_written.touch()
    second = make_daemon(models=(tiny,), home=first.home)
    answer = httpx.post(
        f"{second.url}/v1/chat/completions", json=chat(tiny, max_tokens=2), timeout=60
    )
    assert answer.status_code == 200
    assert not half_written.exists()
    assert second.stop() == 0


def test_the_log_is_json_and_holds_no_prompt_and_no_answer(
    make_daemon: MakeDaemon, tiny: Path
) -> None:
    daemon = make_daemon("--log-level", "debug", models=(tiny,))
    secret = "xyzzy-prompt-secret"
    answer = httpx.post(
        f"{daemon.url}/v1/chat/completions", json=chat(tiny, secret, max_tokens=5), timeout=60
    )
    assert answer.status_code == 200
    daemon.stop()
    text = daemon.log.read_text()
    assert secret not in text
    for line in text.splitlines():
        json.loads(line)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_stops_it(tmp_path: Path, number: signal.Signals) -> None:
    daemon = DaemonProcess(tmp_path)
    daemon.spawn()
    daemon.until(lambda: daemon.instance() is not None, "no port")
    daemon.signal(number)
    assert daemon.wait() == 0


def supervised(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SERVE, "--home", str(home), "--supervised", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_t65_a_supervised_mistake_that_stays_ends_with_0_and_is_recorded(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    home = tmp_path / "supervised"
    home.mkdir()
    (home / "config.toml").write_text("[server]\nport = 'x'\n")
    assert supervised(home).returncode == 0
    recorded = json.loads((home / "state/last_exit.json").read_text())
    assert recorded["ending"] == "config"
    assert "server.port" in recorded["message"]
    (home / "config.toml").unlink()
    holder = make_daemon()
    assert supervised(home, "--port", str(holder.port)).returncode == 0
    recorded = json.loads((home / "state/last_exit.json").read_text())
    assert recorded["error"] == "port_taken"
    assert str(holder.port) in recorded["message"]


def test_a_supervised_daemon_logs_to_its_own_file_and_leaves_stderr_alone(
    make_daemon: MakeDaemon, tiny: Path
) -> None:
    daemon = make_daemon("--supervised", models=(tiny,))
    assert daemon.stop() == 0
    assert daemon.log.read_text() == ""
    (log,) = (daemon.home / "logs").glob("*.log")
    assert log.stat().st_mode & 0o777 == 0o600
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert {"listening", "ready", "stopped"} <= set(events)


def test_two_daemons_do_not_share_a_data_folder(make_daemon: MakeDaemon) -> None:
    first = make_daemon()
    second = subprocess.run(
        [*SERVE, "--home", str(first.home), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert second.returncode == 1
    assert f"pid {first.pid}" in second.stderr
    assert "--home" in second.stderr
    assert first.answers("/health")
