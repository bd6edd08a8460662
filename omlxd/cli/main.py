"""The commands and their arguments; a command is imported when it is asked for."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from omlxd.errors import ConfigError

GROUPS = ("serve", "status", "models", "guard", "key", "service", "doctor")
"""Modules of this package, each one command."""


def run(argv: Sequence[str]) -> int:
    """Run one command; the exit code."""
    parser = argparse.ArgumentParser(
        prog="omlxd", description="Serves local language models and keeps the machine alive."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # Every start of the daemon goes through here: it need not read the other commands.
    asked = argv[:1] if argv and argv[0] in GROUPS else GROUPS
    for group in asked:
        import_module(f"omlxd.cli.{group}").add_arguments(commands)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        # Such as a home of nobody; what a command can say better it has caught itself.
        print("\n".join(f"omlxd: {mistake}" for mistake in error.mistakes), file=sys.stderr)
        return 78
    except BrokenPipeError:
        # The reader of our output has left; nothing more can be said.
        sys.stderr.close()
        return 141
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        from omlxd.cli.other_version import explained

        if (why := explained(arguments)) is None:
            raise
        print(f"omlxd: {why} ({error!r})", file=sys.stderr)
        return 1
    return code


def _version() -> str:
    from omlxd import __version__

    return f"omlxd {__version__}"
