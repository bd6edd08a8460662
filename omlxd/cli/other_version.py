"""Tells a daemon of another version, whose answers have another form, from a fault of ours."""

import argparse

from omlxd.cli.client import Refused, Unreachable, speaking


def explained(arguments: argparse.Namespace) -> str | None:
    """The sentence about the daemon that the arguments mean; None where the versions are one, or
    there is no such daemon."""
    from omlxd import __version__

    if not hasattr(arguments, "url"):
        return None
    try:
        daemon = speaking(arguments)
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
