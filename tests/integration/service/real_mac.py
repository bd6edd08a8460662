"""The Mac that the tests run on, in place of the simulated one: the real launchd and launchctl."""

import itertools
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from omlxd.doctor.finding import Finding
from omlxd.service import machine
from omlxd.service.launchctl import Launchctl, load_state
from omlxd.service.launchd import choose_domain
from omlxd.service.machine import Machine
from omlxd.service.supervisor import Clock
from omlxd.service.systemd import Systemctl
from tests.integration.service.conftest import Mac

_numbers = itertools.count()


class RealMac(Mac):
    """The account that runs the tests. Label and folders are its own: an installed omlxd is left
    alone, and a login finds nothing to start."""

    def __init__(self) -> None:
        number = next(_numbers)
        self.label = f"io.github.omlxd.test-{os.getpid()}-{number}"
        # Not below /tmp or a protected folder: launchd's job must be able to enter it.
        self.folder = Path.home() / "Library" / "Caches" / self.label
        self.folder.mkdir(parents=True)
        super().__init__(self.folder, real=True)
        self.uid = os.getuid()

    @property
    def plist(self) -> Path:
        return self.user_home / "Library" / "LaunchAgents" / f"{self.label}.plist"

    def scenario(self, **facts: Any) -> None:
        """Launchd is as it is."""

    def machine(self) -> Machine:
        return Machine(
            platform="darwin",
            uid=self.uid,
            user_home=self.user_home,
            launchctl=Launchctl(),
            systemctl=Systemctl(),
            systemd_booted=lambda: False,
            clock=Clock(time.monotonic, time.sleep),
            system_folder=self.user_home / "LaunchDaemons",
        )

    def omlxd(self, *words: str) -> int:
        with self._own_label():
            return super().omlxd(*words)

    def doctor(self) -> list[Finding]:
        with self._own_label():
            return super().doctor()

    def job(self, target: str = "") -> dict[str, Any] | None:
        control = Launchctl()
        domain = choose_domain(self.uid, lambda name: load_state(control.print(name).code))
        if not control.print(domain.target(self.label)).ok:
            return None
        listed = control.list(self.label)
        assert listed is not None
        return {"pid": listed.pid, "last_exit": listed.last_exit or 0, "start": False}

    def shut_down(self) -> None:
        self.omlxd("uninstall")
        shutil.rmtree(self.folder)

    @contextmanager
    def _own_label(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine, "LABEL", self.label)
            yield
