"""The commands and their arguments."""

import argparse
from collections.abc import Sequence
from importlib.metadata import version


def run(argv: Sequence[str]) -> int:
    """Run one command; the exit code."""
    parser = argparse.ArgumentParser(prog="omlxd")
    parser.add_argument("--version", action="version", version=version("omlxd"))
    parser.add_subparsers(dest="command", required=True)
    parser.parse_args(argv)
    return 0
