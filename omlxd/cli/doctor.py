"""``omlxd doctor``: check everything that can be wrong; one line each, with its remedy."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from omlxd.cli.service_context import Context
    from omlxd.config.load import Config
    from omlxd.doctor.finding import Finding
    from omlxd.instance import InstanceRecord
    from omlxd.service.job import Account

WIDTH = 14
"""Characters of the column with the names."""


def add_arguments(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check this machine, the configuration and the daemon",
        description="Check this machine, the configuration, the service and the daemon.",
    )
    parser.add_argument("--config", metavar="FILE", help="configuration file (TOML)")
    parser.add_argument("--home", metavar="DIR", help="the one folder that holds all files")
    parser.add_argument("--system", action="store_true", help="look at the daemon of the whole Mac")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run all checks. Returns 1 when something does not work; warnings do not count."""
    import logging

    import structlog

    from omlxd.doctor.finding import failed

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    found = []
    for finding in look(arguments, os.environ):
        found.append(finding)
        if not arguments.json:
            print(line(finding), flush=True)
    if arguments.json:
        import json
        from dataclasses import asdict

        rows = [{**asdict(finding), "verdict": finding.verdict.value} for finding in found]
        print(json.dumps({"ok": not failed(found), "findings": rows}, indent=1))
    return 1 if failed(found) else 0


def look(arguments: argparse.Namespace, environ: Mapping[str, str]) -> "Iterator[Finding]":
    """The findings of every check, or only one when the paths themselves are wrong."""
    from omlxd.cli.service_context import context
    from omlxd.doctor.finding import fail
    from omlxd.errors import ConfigError
    from omlxd.service.machine import this_machine

    try:
        found = context(arguments, environ, this_machine())
    except ConfigError as error:
        for mistake in error.mistakes:
            yield fail("config", mistake, "name it by its whole path")
        return
    if found.means_system():
        yield from _elsewhere(found)
    else:
        yield from examine(found)


def _elsewhere(context: "Context") -> "Iterator[Finding]":
    """What can be checked when the daemon belongs to another account."""
    from omlxd.config.load import Config
    from omlxd.doctor.finding import warn

    text = "the daemon of the whole Mac is installed, which only root can look into"
    yield warn("service", text, "sudo omlxd doctor --system")
    yield from _machine(context, Config(paths=context.paths))


def line(finding: "Finding") -> str:
    remedy = "" if finding.remedy is None else f"  -> {finding.remedy}"
    return f"{finding.verdict.value:<4}  {finding.name:<{WIDTH}}  {finding.text}{remedy}"


def examine(context: "Context") -> "Iterator[Finding]":
    """Run the checks in turn, and give the findings of each as soon as it ends."""
    from omlxd.config.load import Config
    from omlxd.config.load import load as load_config
    from omlxd.doctor.finding import fail, ok
    from omlxd.errors import ConfigError, ServiceFailed

    account = None
    try:
        account = context.runs_as()
    except ServiceFailed as error:
        yield fail("account", error.message, "omlxd service install --system --user NAME")
    home, named = (None if p is None else str(p) for p in (context.home, context.config_file))
    environ = context.daemon_environ(account)
    try:
        loaded = load_config({}, environ, home=home, config_file=named)
        config = replace(loaded, paths=context.paths)
        there = "" if config.paths.config_file.exists() else " (absent: all defaults)"
        yield ok("config", f"{config.paths.config_file}{there}")
    except ConfigError as error:
        for mistake in error.mistakes:
            yield fail("config", mistake)
        config = Config(paths=context.paths)
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        lambda: _machine(context, config),
        lambda: _files(context, config, account),
        lambda: _service_and_daemon(context, config, account),
    )
    for check in checks:
        yield from check()


def _machine(context: "Context", config: "Config") -> "Iterator[Finding]":
    import platform

    from omlxd.doctor import machine
    from omlxd.host.clock import continuous_clock
    from omlxd.host.protocol import RuntimeMemory, open_host

    yield machine.check_python(
        context.python, sys.version_info[:2], f"Python {platform.python_version()}"
    )
    found = machine.probe_runtime()
    yield machine.check_mlx(found)
    gpu = machine.check_gpu(found, context.machine.platform)
    if gpu is not None:
        yield gpu
    working_set = found.working_set if isinstance(found, machine.RuntimeInfo) else None
    host = RuntimeMemory(working_set=lambda: working_set)
    yield from machine.check_memory(
        lambda: open_host(host), config.guard.policy(), continuous_clock()
    )


def _files(context: "Context", config: "Config", account: "Account | None") -> "Iterator[Finding]":
    from omlxd.doctor import files
    from omlxd.doctor.files import Roots
    from omlxd.doctor.finding import fail
    from omlxd.errors import ConfigError
    from omlxd.library.scanner import model_roots

    dirs = config.models.dirs
    try:
        paths = model_roots(dirs, config.paths.models, context.daemon_environ(account))
    except ConfigError as error:
        yield fail("models", error.message)
    else:
        yield from files.check_roots(
            Roots(
                paths=paths,
                optional=paths if dirs is None else (config.paths.models,),
                limit=config.models.scan_limit,
                platform=context.machine.platform,
                home=context.machine.user_home if account is None else account.home,
                account=account,
            )
        )
    yield files.check_cache(config.paths.cache, account)
    yield from files.check_private(config.paths)
    if account is None:
        yield from files.check_usable(config.paths)
    job = context.job_of(account)
    if context.definition is not None:
        job = replace(job, interpreter=context.definition.interpreter)
    yield from files.check_account(job)
    yield files.check_keys(config.paths, account)


def _service_and_daemon(
    context: "Context", config: "Config", account: "Account | None"
) -> "Iterator[Finding]":
    serviced = yield from _service(context, config)
    yield from _daemon(context, config, account, serviced=serviced)


def _service(context: "Context", config: "Config") -> "Generator[Finding, None, bool]":
    """Whether the service runs the daemon of this folder, or would run it."""
    from omlxd.doctor import daemon
    from omlxd.doctor.finding import ok, warn
    from omlxd.errors import ServiceFailed
    from omlxd.service import control, interpreter

    try:
        status = control.status(context.installed(), context.watch())
    except ServiceFailed as error:
        # On other systems there may be no supported supervisor. The user cannot repair that.
        verdict = warn if context.machine.platform == "darwin" else ok
        yield verdict("service", error.message)
        return False
    yield from daemon.check_service(
        status, context.executable, interpreter.problems(context.python)
    )
    if status.installed:
        yield from daemon.check_stop_limits(config.server.drain_limit, config.server.stop_limit)
    record = status.record
    ours = status.installed and status.elsewhere is None
    return ours and (record is None or control.is_job(status.job, record))


def _daemon(
    context: "Context", config: "Config", account: "Account | None", *, serviced: bool
) -> "Iterator[Finding]":
    from omlxd import instance
    from omlxd.api.key_file import path_in, read_keys
    from omlxd.daemon.listen import holder
    from omlxd.doctor import daemon
    from omlxd.errors import ConfigError

    running = instance.running(config.paths.state)
    server = config.server
    yield daemon.check_port(server.host, server.port, running, serviced=serviced, holder=holder)
    if server.socket is not None:
        yield daemon.check_socket(server.socket, running, account, serviced=serviced)
    with contextlib.suppress(ConfigError):  # the check of the keys has reported it
        owner = None if account is None else account.uid
        any_key = bool(read_keys(path_in(config.paths.state), owner=owner))
        yield daemon.check_reach(server.host, any_key=any_key)
    answer = instance.ask_health(running.url) if running is not None and running.url else None
    if running is None and instance.is_held(config.paths.state):
        yield daemon.unrecorded(config.paths.state)
    else:
        yield daemon.check_health(running, answer, serviced=serviced)
    if running is not None and isinstance(answer, instance.Healthy):
        yield from _guard(running, config.paths.state)


def _guard(running: "InstanceRecord", state: "Path") -> "Iterator[Finding]":
    from omlxd.cli.client import Daemon, Refused, Unreachable, key_for
    from omlxd.doctor.daemon import check_guard
    from omlxd.doctor.finding import fail

    assert running.url is not None
    try:
        with contextlib.closing(Daemon(running.url, key_for(state, os.environ))) as daemon:
            status = daemon.get("/status")
    except (Unreachable, Refused) as error:
        yield fail("guard", str(error))
        return
    if isinstance(status, dict):
        yield check_guard(status)
