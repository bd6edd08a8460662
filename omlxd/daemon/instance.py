"""Which daemon this is: its identity, and the file that tells local tools where it listens."""

import json
import os
import socket
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlxd import __version__
from omlxd.store import write_json

FILE = "instance.json"


@dataclass(frozen=True, slots=True)
class Instance:
    """One run of the daemon. ``started_at`` is seconds since 1970."""

    id: str
    pid: int
    host: str
    port: int
    started_at: float
    version: str

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def new_instance(listener: socket.socket) -> Instance:
    host, port = listener.getsockname()[:2]
    return Instance(uuid.uuid4().hex, os.getpid(), host, port, time.time(), __version__)


def announce(instance: Instance, state: Path) -> None:
    """Write the instance file, for whoever looks for a running daemon."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(
        state / FILE,
        {
            "instance_id": instance.id,
            "pid": instance.pid,
            "host": instance.host,
            "port": instance.port,
            "started_at": instance.started_at,
            "version": instance.version,
        },
    )


def withdraw(instance: Instance, state: Path) -> None:
    """Remove the instance file, unless another daemon has written its own meanwhile."""
    path = state / FILE
    try:
        found: Any = json.loads(path.read_text())
    except (OSError, ValueError):
        return
    if isinstance(found, dict) and found.get("instance_id") == instance.id:
        path.unlink(missing_ok=True)
