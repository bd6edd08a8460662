"""A Mac made of a stand-in launchctl, and a small real daemon for it to run."""

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from omlxd.cli import service
from omlxd.cli.service_text import Context, context
from omlxd.service.interpreter import Interpreter
from omlxd.service.launchctl import Launchctl, run_process
from omlxd.service.machine import Machine
from omlxd.service.names import LABEL
from omlxd.service.supervisor import Pace
from omlxd.service.systemd import Systemctl
from omlxd.service.watch import Watch

SUPPORT = Path(__file__).parents[2] / "support"
UID = 501
GUI = f"gui/{UID}/{LABEL}"
USER = f"user/{UID}/{LABEL}"


class ImpatientContext(Context):
    """Gives up on a job that never gets healthy after seconds, not after a minute."""

    def watch(self) -> Watch:
        return Watch(self.places.state, super().watch()._ask, self.machine.pace, within=4.0)


class Mac:
    """One simulated machine and account; ``omlxd`` runs a service command on it."""

    def __init__(self, folder: Path) -> None:
        self.world = folder / "launchd"
        self.home = folder / "omlxd home & more"
        self.user_home = folder / "user"
        self.python = folder / "python"
        self.python.write_text(
            f"#!/bin/sh\nPYTHONPATH={Path.cwd()} exec {sys.executable} "
            f'{SUPPORT / "health_job.py"} "$@"\n'
        )
        self.python.chmod(0o755)
        self.world.mkdir()
        self.user_home.mkdir()
        self.uid = UID
        self._environ = {**os.environ, "LAUNCHCTL_DIR": str(self.world)}
        self.scenario()

    @property
    def plist(self) -> Path:
        return self.user_home / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    @property
    def state(self) -> Path:
        return self.home / "state"

    def scenario(self, **facts: Any) -> None:
        # In one step: launchd's stand-in reads it all the time.
        new = self.world / "scenario.json.new"
        new.write_text(json.dumps(facts))
        new.replace(self.world / "scenario.json")

    def config(self, text: str) -> None:
        self.home.mkdir(exist_ok=True)
        (self.home / "config.toml").write_text(text)

    def machine(self) -> Machine:
        def run(command: Any, limit: float) -> tuple[int | None, str]:
            return run_process(["/usr/bin/env", f"LAUNCHCTL_DIR={self.world}", *command], limit)

        return Machine(
            platform="darwin",
            uid=self.uid,
            user_home=self.user_home,
            launchctl=Launchctl(str(SUPPORT / "launchctl"), run),
            systemctl=Systemctl(),
            systemd_booted=lambda: False,
            pace=Pace(time.monotonic, lambda seconds: time.sleep(min(seconds, 0.1))),
            system_folder=self.user_home / "LaunchDaemons",
        )

    def context(self, *words: str) -> Context:
        parser = ArgumentParser()
        service.add_arguments(parser.add_subparsers())
        arguments = parser.parse_args(["service", words[0], "--home", str(self.home), *words[1:]])
        made = context(arguments, {}, self.machine())
        python = Interpreter(
            executable=str(self.python),
            exists=True,
            prefix="/opt/env",
            base="/opt/python",
            system="Darwin",
            machine="arm64",
            user_home=str(self.user_home),
            project=None,
            throwaway=(),
        )
        return ImpatientContext(
            arguments, {}, made.machine, made.places, made.home, replace(python)
        )

    def omlxd(self, *words: str) -> int:
        return service.perform(self.context(*words))

    def launchctl(self, *words: str) -> int:
        done = subprocess.run(
            [SUPPORT / "launchctl", *words], env=self._environ, capture_output=True, check=False
        )
        return done.returncode

    def calls(self) -> list[tuple[str, int]]:
        """Verb and exit code of each call so far."""
        lines = (self.world / "calls.jsonl").read_text().splitlines()
        return [(c["verb"], c["code"]) for c in map(json.loads, lines)]

    def forget_calls(self) -> None:
        (self.world / "calls.jsonl").write_text("")

    def job(self, target: str = GUI) -> dict[str, Any] | None:
        path = self.world / "state.json"
        found: dict[str, Any] | None = json.loads(path.read_text())["services"].get(target)
        return found

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / "instance.json").read_text())
        return found


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """As the commands have it: events do not mix with what a command prints."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def mac(tmp_path: Path) -> Iterator[Mac]:
    mac = Mac(tmp_path)
    yield mac
    mac.launchctl("__shut_down")


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits until something is so; fails after ten seconds."""

    def wait(question: Callable[[], bool]) -> None:
        limit = time.monotonic() + 10.0
        while not question():
            assert time.monotonic() < limit, "did not happen within 10 s"
            time.sleep(0.02)

    return wait


@pytest.fixture
def taken_port() -> Iterator[int]:
    with contextlib.closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]
