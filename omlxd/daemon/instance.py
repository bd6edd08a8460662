"""Which daemon this is."""

import os
from dataclasses import dataclass

from omlxd import __version__


@dataclass(frozen=True, slots=True)
class Instance:
    """One run of the daemon. ``since`` is when it listened, of ``continuous_clock``; the port is
    the real one."""

    id: str
    pid: int
    host: str
    port: int
    since: float
    version: str

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def instance_at(instance_id: str, host: str, port: int, *, since: float) -> Instance:
    return Instance(instance_id, os.getpid(), host, port, since, __version__)
