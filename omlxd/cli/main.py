"""The commands and their arguments. A command is imported only when it is run."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from omlxd.errors import ConfigError

GROUPS = ("serve", "status", "models", "guard", "key", "service", "doctor")
"""Modules of this package; each is one command."""


def run(argv: Sequence[str]) -> int:
    """Run one command. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="omlxd", description="Serves local language models and keeps the machine alive."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # Every start of the daemon runs this code, and does not need the other commands.
    asked = argv[:1] if argv and argv[0] in GROUPS else GROUPS
    for group in asked:
        import_module(f"omlxd.cli.{group}").add_arguments(commands)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        # Such as an unknown ``~NAME``. Errors that a command can explain better, it catches itself.
        print("\n".join(f"omlxd: {mistake}" for mistake in error.mistakes), file=sys.stderr)
        return 78
    except BrokenPipeError:
        # The reader of our output has gone, so nothing more can be printed.
        sys.stderr.close()
        return 141
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        if (why := _other_version(arguments)) is None:
            raise
        print(f"omlxd: {why} ({error!r})", file=sys.stderr)
        return 1
    return code


def _version() -> str:
    from omlxd import __version__

    return f"omlxd {__version__}"


def _other_version(arguments: argparse.Namespace) -> str | None:
    """The sentence for a daemon of another version; its answers may have another form.

    None when the versions are the same or there is no daemon. Then the bug is our own.
    """
    from omlxd import __version__
    from omlxd.cli.client import Refused, Unreachable, connect

    if not hasattr(arguments, "url"):
        return None
    try:
        daemon = connect(arguments)
        health = daemon.get("/health")
    except (Unreachable, Refused):
        return None
    match health:
        case {"version": str(version)} if version != __version__:
            return (
                f"the daemon at {daemon.url} (version {version}) answers in another form than this "
                f"command reads (version {__version__}); restart it, or use its own version of the "
                "command"
            )
        case _:
            return None
