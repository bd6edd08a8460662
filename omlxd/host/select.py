"""Picks the host layer of the platform: the one place that asks which it is."""

import sys

from omlxd.errors import ConfigError
from omlxd.host.darwin import DarwinHost
from omlxd.host.linux import LinuxHost
from omlxd.host.protocol import Host, RuntimeMemory


def open_host(runtime: RuntimeMemory | None = None, *, platform: str = sys.platform) -> Host:
    """The host layer of this machine; nothing is read yet. Raises ConfigError elsewhere."""
    match platform:
        case "darwin":
            return DarwinHost(runtime)
        case "linux":
            return LinuxHost(runtime)
        case _:
            raise ConfigError([f"omlxd runs on macOS and on Linux, not on '{platform}'"])
