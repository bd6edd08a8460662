"""Checks the installed service, the port, the Unix socket and the running daemon."""

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omlxd.daemon.listen import bound
from omlxd.daemon.listeners import check_local_socket
from omlxd.doctor.finding import Finding, fail, ok, warn
from omlxd.errors import ConfigError, PortTaken
from omlxd.instance import RECORD, Health, Healthy, InstanceRecord
from omlxd.service.control import ServiceStatus, is_job
from omlxd.service.interpreter import Problem
from omlxd.service.job import EXIT_TIMEOUT, Account

INSTALL = "omlxd service install"

Bindable = Callable[[str, int], OSError | ValueError | None]
"""Host and port -> the error of binding them; None when they can be bound."""


def check_service(
    status: ServiceStatus, executable: str, problems: Sequence[Problem]
) -> list[Finding]:
    """``executable``: the Python of this command; ``problems``: of a service that uses it."""
    if not status.installed:
        finding = warn("service", "not installed: nothing starts the daemon at login", INSTALL)
        return [finding, *(warn("service", problem.text) for problem in problems)]
    return [
        check_interpreter(status, executable),
        *check_definition(status.definition),
        check_job(status),
    ]


def check_interpreter(status: ServiceStatus, executable: str) -> Finding:
    """Whether the definition starts the Python that runs this command."""
    name = "service python"
    if status.interpreter is None:
        return warn(name, f"{status.definition} cannot be understood", INSTALL)
    if not status.interpreter_exists:
        return fail(name, f"{status.interpreter} is gone; the service cannot start", INSTALL)
    if status.interpreter != executable:
        text = f"the service runs with {status.interpreter}, this command with {executable}"
        return warn(name, text, f"{INSTALL}, if this is the one to use")
    return ok(name, status.interpreter)


def check_definition(path: Path) -> list[Finding]:
    """launchd refuses a definition that others can change."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        return [fail("service file", f"{path}: {error.strerror}", INSTALL)]
    if mode & 0o022:
        text = f"{path}: others may change it (mode {mode:04o}), so launchd refuses it"
        return [fail("service file", text, f"chmod 644 '{path}'")]
    return []


def check_stop_limits(drain_limit: float, stop_limit: float) -> list[Finding]:
    """The configured limits must end before the supervisor kills the process."""
    if drain_limit + stop_limit <= EXIT_TIMEOUT:
        return []
    text = (
        f"a stop may take {drain_limit + stop_limit:.0f} s (server.drain_limit, "
        f"server.stop_limit), and the service is killed after {EXIT_TIMEOUT:.0f} s"
    )
    return [warn("service stop", text, f"keep both together within {EXIT_TIMEOUT:.0f} s")]


def check_job(status: ServiceStatus) -> Finding:
    """The state of the job according to launchd or systemd."""
    job, name = status.job, status.where
    last = status.last_exit
    why = f"; the last run ended: {last.message}" if last is not None and last.message else ""
    if status.elsewhere is not None:
        text = f"the installed service has another data folder: {status.elsewhere}"
        return warn(name, text, "leave out --home (and OMLXD_HOME)")
    if not job.loaded:
        return warn(name, f"the job is not loaded{why}", "omlxd service start")
    if status.record is not None and not is_job(job, status.record):
        text = f"the job is loaded; what runs was started by hand (pid {status.record.pid})"
        return warn(name, text, f"kill {status.record.pid}, then: omlxd service start")
    if job.pid is None and status.record is None:
        seen = f" ({job.last_exit})" if job.last_exit else ""
        return fail(name, f"the job is loaded and does not run{seen}{why}", "omlxd service logs")
    if status.record is None:
        text = f"the job runs (pid {job.pid}) without a record: is the disk full?"
        return warn(name, text, "make room, then: omlxd service restart")
    return ok(name, f"the job is loaded and runs (pid {status.record.pid})")


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
    """Whether the port is free, or held by the daemon of this data folder (``running``).

    ``serviced``: the service started that daemon.
    """
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
    """The Unix socket ``name``. ``account`` runs the daemon; None is the current user."""
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
    """``serviced``: the service started the daemon, or would start it."""
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
    """The finding for a daemon that holds the folder but could not record its address."""
    text = f"it runs (its lock is held), but {state / RECORD} is missing or another's"
    return fail("daemon", text, "make room on the disk, and restart it")


def check_guard(status: Mapping[str, Any]) -> Finding:
    """The state of the memory guard according to the daemon's ``/status``."""
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
