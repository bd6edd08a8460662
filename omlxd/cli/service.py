"""``omlxd service``: install, uninstall, start, stop, restart, look at and read the service."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omlxd.cli.service_context import Context

EXIT_FAILED = 1
EXIT_NOT_RUNNING = 3


def add_arguments(commands: Any) -> None:
    parser = commands.add_parser(
        "service",
        help="run the daemon in the background, from login or boot on",
        description="Manage the background service (launchd on macOS, systemd on Linux).",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    install = _verb(verbs, "install", "install or update the service and wait until it is healthy")
    install.add_argument(
        "--user", metavar="NAME", help="with --system: the account that the daemon runs as"
    )
    install.add_argument(
        "--force",
        action="store_true",
        help="use this Python although it may vanish (a project's environment, a cache)",
    )
    install.add_argument(
        "--restart", action="store_true", help="restart it even when nothing has changed"
    )
    install.add_argument(
        "--dry-run", action="store_true", help="print the job's definition and change nothing"
    )
    uninstall = _verb(verbs, "uninstall", "stop and remove the service; your files stay")
    uninstall.add_argument(
        "--purge",
        action="store_true",
        help="also delete configuration, state, caches and logs (never models)",
    )
    _verb(verbs, "start", "start the installed service")
    stop = _verb(verbs, "stop", "stop it until the next login, boot or start")
    stop.add_argument(
        "--disable", action="store_true", help="keep it stopped after the next login too"
    )
    _verb(verbs, "restart", "let running answers end, then start afresh")
    status = _verb(verbs, "status", "say whether it runs, and why not")
    status.add_argument("--json", action="store_true", help="for programs")
    logs = _verb(verbs, "logs", "show the end of the log")
    logs.add_argument("-f", "--follow", action="store_true", help="go on as the log grows")
    logs.add_argument("-n", "--lines", type=int, default=50, metavar="N", help="how many lines")
    logs.add_argument(
        "--stderr",
        action="store_true",
        help="what launchd or systemd caught instead: start-up errors and native crashes",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run one verb on this machine. Returns the exit code: 3 if ``status`` finds it unhealthy."""
    from omlxd.cli.service_context import context
    from omlxd.errors import OmlxdError
    from omlxd.service.machine import this_machine

    _quiet_logs()
    try:
        return perform(context(arguments, os.environ, this_machine()))
    except BrokenPipeError:
        raise
    except OmlxdError as error:
        print(f"omlxd: {error.message}", file=sys.stderr)
    except OSError as error:
        # Such as a data folder of another account, or a full disk.
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"omlxd: {where}{error.strerror or error}", file=sys.stderr)
    return EXIT_FAILED


def perform(context: "Context") -> int:
    """Run one verb in its context. Raises ServiceFailed."""
    verbs: dict[str, Callable[[Context], int]] = {
        "install": _install,
        "uninstall": _uninstall,
        "start": _start,
        "stop": _stop,
        "restart": _restart,
        "status": _status,
        "logs": _logs,
    }
    return verbs[context.arguments.verb](context)


def _verb(verbs: Any, name: str, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=help, description=help)
    parser.add_argument("--config", metavar="FILE", help="configuration file (TOML)")
    parser.add_argument("--home", metavar="DIR", help="the one folder that holds all files")
    parser.add_argument(
        "--system", action="store_true", help="the daemon of the whole Mac (needs sudo)"
    )
    return parser


def _install(context: "Context") -> int:
    from omlxd import __version__
    from omlxd.cli.service_text import not_carried
    from omlxd.service import install, machine

    arguments = context.arguments
    job = context.job()
    supervisor = machine.supervisor_to_install(context.machine, system=arguments.system)
    definition = machine.definition_of(job, supervisor)
    if arguments.dry_run:
        sys.stdout.write(definition.decode())
        return 0
    context.check_interpreter(force=arguments.force)
    request = install.InstallRequest(
        job=job,
        definition=definition,
        version=__version__,
        others=machine.other_places(context.machine, supervisor),
        restart=arguments.restart,
    )
    done = install.install(supervisor, request, context.watch(), context.machine.clock)
    what = {
        install.InstallAction.KEEP: "was installed already and is healthy",
        install.InstallAction.RESTART: "was installed already; restarted, and it is healthy",
        install.InstallAction.LOAD: "is installed and healthy",
    }
    print(f"omlxd {what[done.action]}: {done.record.url} (pid {done.record.pid}).")
    print(f"  definition  {supervisor.definition}")
    print(f"  config      {context.paths.config_file}")
    print(f"  logs        {context.paths.logs}")
    if supervisor.note:
        print(supervisor.note)
    for line in not_carried(context.environ):
        print(line)
    return 0


def _uninstall(context: "Context") -> int:
    from omlxd.service import uninstall

    done = uninstall.uninstall(
        context.all_supervisors(), context.paths.state, context.machine.clock
    )
    for path in done.removed:
        print(f"removed {path}")
    print("The service is removed." if done.was_installed else "The service was not installed.")
    if not context.arguments.purge:
        print(f"Your configuration and data stay: {context.paths.config_file.parent}")
        return 0
    deleted = uninstall.purge(context.purge_paths(), context.machine.user_home)
    for path in deleted:
        print(f"deleted {path}")
    if not deleted:
        print(f"Nothing was deleted: no omlxd has left anything in {context.paths.state}")
    print(f"Models are kept: {context.paths.models}")
    return 0


def _start(context: "Context") -> int:
    from omlxd.service import control

    record = control.start(context.installed(), context.watch(), context.machine.clock)
    print(f"omlxd runs: {record.url} (pid {record.pid}).")
    return 0


def _stop(context: "Context") -> int:
    from omlxd.service import control

    disable = context.arguments.disable
    was_loaded = control.stop(
        context.installed(), context.watch(), context.machine.clock, disable=disable
    )
    print("omlxd is stopped." if was_loaded else "omlxd was not running as a service.")
    if disable:
        print("It stays stopped until `omlxd service start`.")
    return 0


def _restart(context: "Context") -> int:
    from omlxd.service import control

    record = control.restart(context.installed(), context.watch(), context.machine.clock)
    print(f"omlxd was restarted: {record.url} (pid {record.pid}).")
    return 0


def _status(context: "Context") -> int:
    import json

    from omlxd.cli.service_text import as_json, as_text, is_healthy
    from omlxd.service import control

    status = control.status(context.installed(), context.watch())
    if context.arguments.json:
        print(json.dumps(as_json(status), indent=1))
    else:
        print("\n".join(as_text(status, context.executable)))
    return 0 if is_healthy(status) else EXIT_NOT_RUNNING


def _logs(context: "Context") -> int:
    from omlxd.service.job import LOG, STDERR
    from omlxd.service.log_files import follow, last_lines

    path = context.paths.logs / (STDERR if context.arguments.stderr else LOG)
    try:
        for line in last_lines(path, max(0, context.arguments.lines)):
            print(line)
    except FileNotFoundError:
        print(f"omlxd: there is no log yet: {path}", file=sys.stderr)
        if not context.arguments.follow:
            return EXIT_FAILED
    except OSError as error:
        print(f"omlxd: cannot read {path}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED
    if context.arguments.follow:
        for text in follow(path, context.machine.clock.sleep):
            sys.stdout.write(text)
            sys.stdout.flush()
    return 0


def _quiet_logs() -> None:
    """Hide the log events: they are for the log of the daemon, and a command has its own output."""
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
