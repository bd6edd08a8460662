"""``omlxd key``: make, list and revoke API keys. A running daemon sees the change by itself."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

SCOPES = ("inference", "control", "all")


def add_arguments(commands: Any) -> None:
    parser = commands.add_parser(
        "key",
        help="make, list and revoke API keys",
        description=(
            "Manage API keys. Without any, every program on this Mac may use the server, and none "
            "elsewhere. With one, all but /health need a key; your own omlxd commands go on "
            "working without."
        ),
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    add = _verb(verbs, "add", "make a key and print it, once")
    add.add_argument("name", metavar="NAME", help="to tell it from others: letters, digits, ._-")
    add.add_argument(
        "--scope",
        choices=SCOPES,
        default="inference",
        help="inference (default): ask models; control: status, guard, loading; all: both",
    )
    show = _verb(verbs, "list", "name the keys that work (the keys themselves are kept nowhere)")
    show.add_argument("--json", action="store_true", help="for programs")
    revoke = _verb(verbs, "revoke", "make a key useless at once")
    revoke.add_argument("name", metavar="NAME")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from omlxd.api.key_file import path_in
    from omlxd.cli.client import daemon_paths
    from omlxd.errors import ConfigError, OmlxdError

    path = path_in(daemon_paths(arguments.home, os.environ).state)
    verbs = {"add": _add, "list": _list, "revoke": _revoke}
    try:
        verbs[arguments.verb](arguments, path)
    except ConfigError as error:
        for mistake in error.mistakes:
            print(f"omlxd: {mistake}", file=sys.stderr)
        return 78
    except OmlxdError as error:
        print(f"omlxd: {error.message}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"omlxd: {path}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _verb(verbs: Any, name: str, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=help, description=help)
    parser.add_argument("--home", metavar="DIR", help="the one folder that holds all files")
    return parser


def _add(arguments: argparse.Namespace, path: Path) -> None:
    from omlxd.api.key_file import Scope, add_key, read_keys

    first = not read_keys(path)
    scope = Scope(arguments.scope)
    # Only the key goes to stdout, so that it can be piped; messages go to stderr.
    print(add_key(path, arguments.name, scope, time.time()))
    _say(f"This is the key '{arguments.name}', for {scope.value}. It is shown only now.")
    _say(f"What checks it is in {path}.")
    if first:
        _say("It is the first one: from now on everything but /health needs a key.")


def _list(arguments: argparse.Namespace, path: Path) -> None:
    import json
    from datetime import datetime

    from omlxd.api.key_file import read_keys

    keys = read_keys(path, owner=_owner(path))
    if arguments.json:
        rows = [
            {"name": key.name, "scope": key.scope.value, "created_at": key.created_at}
            for key in keys
        ]
        print(json.dumps(rows, indent=1))
        return
    for key in keys:
        since = datetime.fromtimestamp(key.created_at).strftime("%Y-%m-%d %H:%M")
        print(f"{key.name:<24} {key.scope.value:<10} since {since}")
    if not keys:
        _say(f"There are no keys in {path}: every program on this machine may use the server.")


def _revoke(arguments: argparse.Namespace, path: Path) -> None:
    from omlxd.api.key_file import revoke_key

    left = revoke_key(path, arguments.name)
    _say(f"The key '{arguments.name}' is out of {path} and works no longer.")
    if not left:
        _say("No key is left: every program on this machine may use the server now.")


def _owner(path: Path) -> int | None:
    """The user whose keys root reads; None for other users, who read their own."""
    try:
        return path.parent.stat().st_uid if os.geteuid() == 0 else None
    except OSError:
        return None


def _say(text: str) -> None:
    print(text, file=sys.stderr)
