"""A real daemon process for tests: start it, call it, stop it, read its log."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from tests.support.signals import default_signals

START_LIMIT = 60.0
POLL = 0.05
"""Seconds. Not less: the daemon under test needs the CPU more than this watcher."""


class DaemonProcess:
    """``omlxd serve`` under its own home folder, on a free port."""

    def __init__(
        self,
        home: Path,
        *arguments: str,
        config: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        if config is not None:
            (home / "config.toml").write_text(config)
        port = () if "--port" in arguments else ("--port", "0")
        self.command = [
            *(sys.executable, "-m", "omlxd", "serve", "--home", str(home)),
            *(*port, *arguments),
        ]
        self.environ = {**os.environ, "HF_HUB_OFFLINE": "1", **(environ or {})}
        self.log = home / "stderr.log"
        self.started_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self, output: int | None = None) -> None:
        """``output``: a descriptor for stdout and stderr, instead of the log file."""
        with self.log.open("ab") as log:
            out = log.fileno() if output is None else output
            self.started_at = time.monotonic()
            self._process = subprocess.Popen(
                self.command,
                stdout=out,
                stderr=out,
                env=self.environ,
                cwd=self.home,
                preexec_fn=default_signals,
            )

    def start(self) -> "DaemonProcess":
        self.spawn()
        self.until(lambda: self.instance() is not None, "it did not listen")
        self.until(lambda: self.answers("/health"), "it did not answer /health")
        self.until(lambda: self.answers("/ready"), "it did not become ready")
        return self

    def answers(self, path: str) -> bool:
        try:
            return httpx.get(f"{self.url}{path}", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def instance(self) -> dict[str, Any] | None:
        """The record of the running process; None before it listens."""
        try:
            found: dict[str, Any] = json.loads((self.home / "state/instance.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return found if found["pid"] == self.pid and found["port"] is not None else None

    @property
    def port(self) -> int:
        found = self.instance()
        assert found is not None, self.tail()
        port: int = found["port"]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, timeout: float = 120.0) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=timeout)

    def get(self, path: str) -> Any:
        answer = httpx.get(f"{self.url}{path}", timeout=10)
        answer.raise_for_status()
        return answer.json()

    def status(self) -> Any:
        return self.get("/status")

    def until(self, true: Callable[[], bool], otherwise: str, limit: float = START_LIMIT) -> None:
        """Wait until ``true()``; else fail with ``otherwise`` and the end of the log."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if true():
                return
            assert self._process is None or self._process.poll() is None or true(), (
                f"{otherwise}: exit code {self.process.poll()}\n{self.tail()}"
            )
            time.sleep(POLL)
        raise AssertionError(f"{otherwise} within {limit} s\n{self.tail()}")

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log's records of one event (the daemon logs JSON when it has no terminal)."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            if line.startswith("{") and (record := json.loads(line)).get("event") == name:
                found.append(record)
        return found

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, limit: float = 40.0) -> int:
        return self.process.wait(limit)

    def stop(self, limit: float = 40.0) -> int:
        """Send SIGTERM, after ``limit`` SIGKILL. Returns the exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the daemon did not stop\n{self.tail()}") from None

    def __enter__(self) -> "DaemonProcess":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def stream_chat(client: httpx.Client, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The JSON payloads of one streamed chat answer. ``[DONE]`` is required but left out."""
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        if answer.status_code != 200:
            answer.read()
            answer.raise_for_status()
        yield from payloads(answer.iter_lines())


def payloads(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    done = False
    for line in lines:
        if line.startswith("data: "):
            assert not done, "something follows [DONE]"
            if line == "data: [DONE]":
                done = True
            else:
                yield json.loads(line.removeprefix("data: "))
        else:
            assert line == "" or line.startswith(":"), line
    assert done, "the stream ended without [DONE]"


def text_of(chunks: Sequence[Mapping[str, Any]]) -> str:
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


def link_models(home: Path, *models: Path) -> None:
    """Put the given model folders under ``home``. On the same volume no bytes are copied."""
    for model in models:
        target = home / "models" / model.name
        target.mkdir(parents=True, exist_ok=True)
        for file in model.iterdir():
            if file.is_file() and not (target / file.name).exists():
                link_or_copy(file, target / file.name)


def link_or_copy(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:  # another volume, or one without hard links
        shutil.copyfile(file, target)
