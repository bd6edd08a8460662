"""``omlxd serve``: read the configuration, take the port, then become the daemon."""

import argparse
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from omlxd.daemon.signals import stop_was_asked

if TYPE_CHECKING:
    from omlxd.config.load import Config
    from omlxd.config.options import LogOptions
    from omlxd.service.daemon_run import DaemonRun, InstanceLock


def add_arguments(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="run the daemon in the foreground",
        description="Run the daemon in the foreground until it is asked to stop (SIGTERM, Ctrl-C).",
    )
    parser.add_argument("--config", metavar="FILE", help="configuration file (TOML)")
    parser.add_argument(
        "--home", metavar="DIR", help="keep config, state, models, caches and logs in one folder"
    )
    parser.add_argument("--host", help="address to listen on")
    parser.add_argument("--port", help="port to listen on; 0 takes a free one")
    parser.add_argument(
        "--model-dir",
        metavar="DIR",
        action="append",
        help="folder with models; may be given several times; in place of the Hugging Face cache",
    )
    parser.add_argument("--log-level", help="debug, info, warning or error")
    parser.add_argument(
        "--supervised",
        action="store_true",
        help="log to files, and end mistakes that stay with exit code 0 (for launchd, systemd)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    # The port comes first: during the long imports below, clients would be refused without it.
    opened = _take_port(arguments)
    try:
        daemon_run, log = _prepare(
            arguments, opened.config.log if isinstance(opened, OpenPort) else None
        )
    except Exception as error:  # noqa: BLE001 — no caller could record or count it
        return _give_up(error, supervised=arguments.supervised)

    try:
        return daemon_run.run(lambda lock: _serve(opened, daemon_run, lock, log))
    finally:
        if isinstance(opened, OpenPort):
            opened.listener.close()


def _give_up(error: Exception, *, supervised: bool) -> int:
    """Without the data folder no start is counted, so a supervisor must not restart the daemon."""
    from omlxd.errors import OmlxdError

    if isinstance(error, OmlxdError):
        sys.stderr.write(f"omlxd: {error}\n")
    else:
        import traceback

        traceback.print_exception(error)
    return 0 if supervised else 78


@dataclass(frozen=True, slots=True)
class OpenPort:
    """The configuration, and its socket, which has listened ``since`` that time."""

    config: "Config"
    listener: socket.socket
    since: float


def _take_port(arguments: argparse.Namespace) -> "OpenPort | Exception":
    """The open port, or the error. ``_serve`` raises the error, so it is recorded and counted."""
    try:
        from omlxd.config.load import FLAGS, load
        from omlxd.daemon.listen import listen
        from omlxd.host.clock import continuous_clock

        given = vars(arguments)
        named = {option: given[flag[2:].replace("-", "_")] for option, flag in FLAGS.items()}
        flags = {option: value for option, value in named.items() if value is not None}
        config = load(flags, os.environ, home=arguments.home, config_file=arguments.config)
        listener = listen(config.server.host, config.server.port)
        return OpenPort(config, listener, continuous_clock())
    except Exception as error:  # noqa: BLE001 — _serve raises every error again
        return error


def _prepare(
    arguments: argparse.Namespace, options: "LogOptions | None"
) -> "tuple[DaemonRun, TextIO | None]":
    """The run, and its log if it is supervised. From now on events go to that log, else to stderr.

    Raises ConfigError for a bad folder.
    """
    from omlxd import __version__
    from omlxd.config.options import LogOptions
    from omlxd.config.paths import named_paths
    from omlxd.daemon.logs import configure
    from omlxd.service.daemon_run import DaemonRun

    found = named_paths(os.environ, home=arguments.home, config_file=arguments.config)
    daemon_run = DaemonRun(
        state=found.state,
        logs=found.logs,
        version=__version__,
        interpreter=sys.executable,
        supervised=arguments.supervised,
    )
    log = _supervised_log(found.logs) if arguments.supervised else None
    configure(options or LogOptions(), log)
    return daemon_run, log


def _supervised_log(folder: Path) -> TextIO:
    """The daemon's own log. Events that cannot be written there go to stderr."""
    from omlxd.service.log_files import open_log

    # It is a text stream, though not by its type.
    return cast(TextIO, open_log(folder, sys.stderr))


def _serve(
    opened: "OpenPort | Exception",
    daemon_run: "DaemonRun",
    lock: "InstanceLock",
    log: TextIO | None,
) -> int:
    """Run the daemon in its data folder. Raises the error of ``_take_port``."""
    if not isinstance(opened, OpenPort):
        raise opened
    from omlxd.daemon.listeners import open_listeners
    from omlxd.daemon.process import Instance, ProcessHooks

    listeners = open_listeners(opened.config, opened.listener)
    try:
        host, port = listeners.tcp.getsockname()[:2]
        lock.announce(host, port)
        from omlxd.daemon.main import serve

        hooks = ProcessHooks(
            log=log,
            before_exit=lambda code: _leave(daemon_run, lock, code),
            stop_asked=stop_was_asked,
        )
        instance = Instance(lock.record.instance_id, host, port, since=opened.since)
        return serve(opened.config, listeners, instance, hooks)
    finally:
        listeners.remove_files()


def _leave(daemon_run: "DaemonRun", lock: "InstanceLock", code: int) -> int:
    """Do the work of unwinding, for an exit that cannot wait for it. Returns the exit code."""
    code = daemon_run.record_exit(lock, code)
    lock.release()
    return code
