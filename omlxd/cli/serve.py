"""``omlxd serve``: read the configuration, take the port, then become the daemon."""

import argparse
import os
import sys
from typing import Any

EXIT_CONFIG = 78
EXIT_PORT = 1


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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from omlxd.config.load import load
    from omlxd.daemon.doors import open_doors
    from omlxd.errors import ConfigError, PortTaken

    named = {
        "server.host": arguments.host,
        "server.port": arguments.port,
        "log.level": arguments.log_level,
        "models.dirs": arguments.model_dir,
    }
    flags = {key: value for key, value in named.items() if value is not None}
    try:
        config = load(flags, os.environ, home=arguments.home, config_file=arguments.config)
        doors = open_doors(config)
    except ConfigError as error:
        for mistake in error.mistakes:
            print(f"omlxd: {mistake}", file=sys.stderr)
        return EXIT_CONFIG
    except PortTaken as error:
        print(f"omlxd: {error.message}", file=sys.stderr)
        return EXIT_PORT
    from omlxd.daemon.main import serve

    return serve(config, doors)
