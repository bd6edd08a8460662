"""Checks the port, the Unix socket and the daemon behind it."""

import errno
import ipaddress
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omlxd.daemon.listen import bound
from omlxd.daemon.listeners import check_local_socket
from omlxd.doctor.finding import Finding, fail, ok, warn
from omlxd.errors import ConfigError, PortTaken
from omlxd.instance import RECORD, Health, Healthy, InstanceRecord
from omlxd.service.job import Account

Bindable = Callable[[str, int], OSError | ValueError | None]
"""Host and port -> why they cannot be bound; None when they can."""


def try_bind(host: str, port: int) -> OSError | ValueError | None:
    try:
        bound(host, port).close()
    except (OSError, ValueError) as error:
        return error
    return None


def check_port(
    host: str,
    port: int,
    running: InstanceRecord | None,
    *,
    serviced: bool,
    bind: Bindable = try_bind,
    holder: Callable[[str, int], str],
) -> Finding:
    """Free, or held by the daemon of this data folder (``running``), which the service has started
    if ``serviced``."""
    if running is not None and running.port is not None:
        if port not in (0, running.port):
            return warn(
                "port",
                f"the running daemon listens on {running.port}, configured is {port}",
                f"{_restart(serviced)}, or set server.port = {running.port}",
            )
        return ok("port", f"{running.port} is held by the running daemon (pid {running.pid})")
    if port == 0:
        return ok("port", "a free one is taken at each start")
    error = bind(host, port)
    if error is None:
        return ok("port", f"{port} is free")
    if isinstance(error, socket.gaierror | ValueError):
        return fail("port", f"server.host {host!r} is not an address", "set it to 127.0.0.1")
    text = f"{port} on {host} cannot be used: {error.strerror or error}"
    if error.errno != errno.EADDRINUSE:
        return fail("port", text, "set server.host to 127.0.0.1, or another server.port")
    held = f"{text}; it is held by {holder(host, port)}"
    return fail("port", held, "stop that process, or set server.port")


def check_socket(
    name: str, running: InstanceRecord | None, account: Account | None = None, *, serviced: bool
) -> Finding:
    """The Unix socket ``name``; ``account``: that the daemon runs as, None for who asks."""
    if account is not None and name.startswith("~/"):
        name = str(account.home / name[2:])
    try:
        check_local_socket(name, os.geteuid() if account is None else account.uid)
    except ConfigError as error:
        return fail("socket", "; ".join(error.mistakes))
    except PortTaken as error:
        if running is None:
            return fail("socket", error.message)
        return ok("socket", f"{name} is held by the running daemon (pid {running.pid})")
    if running is None:
        return ok("socket", f"{name} is free")
    text = f"the running daemon does not listen on {name}"
    return warn("socket", text, _restart(serviced))


def _restart(serviced: bool) -> str:
    by_hand = "end it, and start it as it is configured: omlxd serve"
    return "restart it: omlxd service restart" if serviced else by_hand


def check_reach(host: str, *, any_key: bool) -> Finding:
    """Who can reach the port."""
    if host == "localhost" or _is_loopback(host):
        return ok("reach", f"{host}: this machine only")
    if not any_key:
        return fail(
            "reach",
            f"{host} lets other machines in, and there is no API key: the daemon will not start",
            "omlxd key add NAME, or server.host = '127.0.0.1'",
        )
    return warn("reach", f"{host} lets other machines in, with a key; the traffic is not encrypted")


def check_health(
    running: InstanceRecord | None, health: Health | None, *, serviced: bool
) -> Finding:
    """``serviced``: the service has started it, or would, where it does not run."""
    if running is None:
        start = "omlxd service start, or omlxd serve" if serviced else "omlxd serve"
        return warn("daemon", "it does not run", start)
    if not isinstance(health, Healthy):
        why = "it has no address yet" if health is None else health.why
        logs = "omlxd service logs" if serviced else "see what it wrote to its terminal"
        return fail("daemon", f"pid {running.pid} is not healthy: {why}", logs)
    if health.instance_id != running.instance_id:
        return fail(
            "daemon",
            f"another daemon answers at {running.url} than the one of this folder",
            "stop one of them",
        )
    return ok("daemon", f"{running.url}, version {health.version}, pid {running.pid}")


def unrecorded(state: Path) -> Finding:
    """Of a daemon that holds the folder and could not say where it answers."""
    text = f"it runs (its lock is held), but {state / RECORD} is missing or another's"
    return fail("daemon", text, "make room on the disk, and restart it")


def check_guard(status: Mapping[str, Any]) -> Finding:
    """What the daemon's own ``/status`` says of the memory guard."""
    match status:
        case {"enabled": bool(enabled), "pressure_level": str(level)}:
            pass
        case _:
            return warn("guard", "the daemon says nothing of its memory guard")
    if not enabled:
        return warn("guard", "the memory guard is off", "omlxd guard set --enable")
    ceiling = status.get("ceiling") or {}
    bound, remedy = ceiling.get("binding"), ceiling.get("remedy")
    text = f"memory pressure is {level}" + (f" (bound: {bound})" if bound else "")
    if ceiling.get("enforced") is False:
        text += ", and nothing is done about it (monitor mode)"
    if level == "ok" and ceiling.get("admission_paused"):
        return warn("guard", f"{text}, new requests wait", ceiling.get("pause_reason"))
    return ok("guard", text) if level == "ok" else warn("guard", text, remedy or None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
