"""The commands and their arguments; a command's own imports wait until it runs."""

import argparse
import sys
from collections.abc import Sequence

from omlxd.cli import doctor, guard, key, models, serve, service, status

GROUPS = (serve, status, models, guard, key, service, doctor)


def run(argv: Sequence[str]) -> int:
    """Run one command; the exit code."""
    parser = argparse.ArgumentParser(
        prog="omlxd", description="Serves local language models and keeps the machine alive."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for group in GROUPS:
        group.add_arguments(commands)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has left; nothing more can be said.
        sys.stderr.close()
        return 141
    return code


def _version() -> str:
    from omlxd import __version__

    return f"omlxd {__version__}"
