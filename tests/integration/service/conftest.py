"""A Mac made of a stand-in launchctl, and a small real daemon for it to run."""

import contextlib
import json
import logging
import socket
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import structlog

from omlxd.cli import service
from omlxd.cli.doctor import examine
from omlxd.cli.service_context import Context, context
from omlxd.doctor.finding import Finding
from omlxd.instance import ask_health
from omlxd.service.interpreter import Interpreter
from omlxd.service.job import LABEL
from omlxd.service.launchctl import Launchctl, Run, run_process
from omlxd.service.machine import Machine
from omlxd.service.supervisor import Clock
from omlxd.service.systemd import Systemctl
from omlxd.service.watch import Watch

REPOSITORY = Path(__file__).parents[3]
SUPPORT = REPOSITORY / "tests" / "support"
UID = 501
GUI = f"gui/{UID}/{LABEL}"
USER = f"user/{UID}/{LABEL}"


HEALTH_JOB = f'"{SUPPORT / "health_job.py"}" "$@"'
"""Arguments of the shell: the tiny daemon, which starts in a third of the real one's time."""
REAL_DAEMON = '"$@"'
FREE_PORT = "[server]\nport = 0\n"


@dataclass(frozen=True, slots=True)
class ImpatientContext(Context):
    """Gives up on a job that never gets healthy after ``within`` seconds, not after a minute."""

    within: float

    def watch(self) -> Watch:
        return Watch(self.paths.state, ask_health, self.machine.clock, within=self.within)


def stand_in(world: Path) -> ModuleType:
    """The stand-in launchctl inside this process: no interpreter has to start for a call."""
    loader = SourceFileLoader("stand_in_launchctl", str(SUPPORT / "launchctl"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    module.DIR = world  # type: ignore[attr-defined]
    return module


class Mac:
    """One simulated machine and account; ``omlxd`` runs a service command on it.

    ``real``: the job is ``omlxd serve``, and each call of launchctl a process.
    """

    def __init__(self, folder: Path, *, real: bool = False) -> None:
        self.world = folder / "launchd"
        self.home = folder / "omlxd home & more"
        self.user_home = folder / "user"
        self.python = folder / "python"
        self.run_python(REAL_DAEMON if real else HEALTH_JOB)
        self.world.mkdir()
        self.user_home.mkdir()
        self.uid = UID
        self.environ: dict[str, str] = {}
        self.within = 30.0
        self._real = real
        self._launchctl = stand_in(self.world)
        self.scenario()

    def run_python(self, arguments: str) -> None:
        """What the interpreter named in the job's definition really runs."""
        self.python.write_text(
            f'#!/bin/sh\nPYTHONPATH="{REPOSITORY}" exec "{sys.executable}" {arguments}\n'
        )
        self.python.chmod(0o755)

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
        run: Run = self._in_a_process if self._real else self._in_here
        return Machine(
            platform="darwin",
            uid=self.uid,
            user_home=self.user_home,
            launchctl=Launchctl(str(SUPPORT / "launchctl"), run),
            systemctl=Systemctl(),
            systemd_booted=lambda: False,
            clock=Clock(time.monotonic, lambda seconds: time.sleep(min(seconds, 0.1))),
            system_folder=self.user_home / "LaunchDaemons",
        )

    def _in_here(self, command: Sequence[str], limit: float) -> tuple[int | None, str]:
        code, text = self._launchctl.call(command[1], list(command[2:]))
        return code, text

    def _in_a_process(self, command: Sequence[str], limit: float) -> tuple[int | None, str]:
        # Named directly: a python3 found on PATH may be a slow wrapper.
        environ = (f"LAUNCHCTL_DIR={self.world}", f"HOME={self.user_home}")
        return run_process(["/usr/bin/env", *environ, sys.executable, "-IS", *command], limit)

    def context(self, *words: str, home: bool = True) -> Context:
        parser = ArgumentParser()
        service.add_arguments(parser.add_subparsers())
        named = ("--home", str(self.home)) if home else ()
        arguments = parser.parse_args(["service", words[0], *named, *words[1:]])
        made = context(arguments, self.environ, self.machine())
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
        facts = {field.name: getattr(made, field.name) for field in fields(made)}
        return ImpatientContext(**{**facts, "python": python}, within=self.within)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.record()['port']}"

    def omlxd(self, *words: str) -> int:
        return service.perform(self.context(*words))

    def doctor(self) -> list[Finding]:
        return list(examine(self.context("status")))

    def launchctl(self, *words: str) -> int:
        code: int = self._launchctl.call(words[0], list(words[1:]))[0]
        return code

    def shut_down(self) -> None:
        self._launchctl.shut_down()

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
    mac.shut_down()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits until something is so; fails after a minute."""

    def wait(question: Callable[[], bool]) -> None:
        limit = time.monotonic() + 60.0
        while not question():
            assert time.monotonic() < limit, "did not happen within 60 s"
            time.sleep(0.02)

    return wait


@pytest.fixture
def taken_port() -> Iterator[int]:
    with contextlib.closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]
