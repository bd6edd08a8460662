"""``omlxd serve``: read the configuration, take the port, then become the daemon."""

import argparse
import os
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from omlxd.config.load import Config
    from omlxd.config.places import Places
    from omlxd.errors import OmlxdError
    from omlxd.service import tenure
    from omlxd.service.single_instance import InstanceLock


def add_arguments(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="run the daemon in the foreground",
        description="Run the daemon in the foreground until SIGTERM or Ctrl-C.",
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
        help="folder with models; may be given several times; replaces the default ones",
    )
    parser.add_argument("--log-level", help="debug, info, warning or error")
    parser.add_argument(
        "--supervised",
        action="store_true",
        help="log to files, and end mistakes that stay with exit code 0 (for launchd, systemd)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    # The port first: what is imported below takes longer than a client should be refused.
    door = _take_port(arguments)

    from omlxd import __version__
    from omlxd.config.load import named_places
    from omlxd.service import tenure

    found = named_places(os.environ, home=arguments.home, config_file=arguments.config)
    log = _supervised_log(found) if arguments.supervised else None
    tenant = tenure.Tenant(
        state=found.state,
        logs=found.logs,
        version=__version__,
        interpreter=sys.executable,
        supervised=arguments.supervised,
    )
    try:
        return tenure.run(tenant, lambda lock: _serve(door, tenant, lock, log))
    finally:
        if isinstance(door, Door):
            door.listener.close()


@dataclass(frozen=True, slots=True)
class Door:
    """The configuration, and the socket that listens as it says."""

    config: "Config"
    listener: socket.socket


def _take_port(arguments: argparse.Namespace) -> "Door | OmlxdError":
    """What stands in the way is returned: it is told by whoever supervises the run."""
    from omlxd.config.load import load
    from omlxd.daemon.listen import listen
    from omlxd.errors import OmlxdError

    named = {
        "server.host": arguments.host,
        "server.port": arguments.port,
        "log.level": arguments.log_level,
        "models.dirs": arguments.model_dir,
    }
    flags = {key: value for key, value in named.items() if value is not None}
    try:
        config = load(flags, os.environ, home=arguments.home, config_file=arguments.config)
        return Door(config, listen(config.server.host, config.server.port))
    except OmlxdError as error:
        return error


def _supervised_log(found: "Places") -> TextIO:
    """The daemon's own file: what goes to stderr then is what could not be written there."""
    from omlxd.config.options import LogOptions
    from omlxd.daemon.logs import configure
    from omlxd.service.logfiles import open_log

    # A text stream in all but its typed ancestry.
    log = cast(TextIO, open_log(found.logs, sys.stderr))
    configure(LogOptions(), log)
    return log


def _serve(
    door: "Door | OmlxdError",
    tenant: "tenure.Tenant",
    lock: "InstanceLock",
    log: TextIO | None,
) -> int:
    """The daemon in its data folder. Raises ConfigError and PortTaken."""
    if not isinstance(door, Door):
        raise door
    from omlxd.daemon.doors import open_doors
    from omlxd.daemon.instance import instance_at
    from omlxd.daemon.surroundings import Process

    doors = open_doors(door.config, door.listener)
    host, port = doors.tcp.getsockname()[:2]
    lock.announce(host, port)
    from omlxd.daemon.main import serve
    from omlxd.service.awake import open_awake

    process = Process(
        log=log,
        awake=open_awake(os.getpid()),
        leaving=lambda code: _leave(tenant, lock, code),
    )
    return serve(door.config, doors, instance_at(lock.record.instance_id, host, port), process)


def _leave(tenant: "tenure.Tenant", lock: "InstanceLock", code: int) -> None:
    """What unwinding would have done, for an exit that cannot wait for it."""
    from omlxd.service import tenure

    tenure.note_ending(tenant, lock, code)
    lock.release()
