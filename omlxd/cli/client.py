"""Finds the running daemon and talks to it. Each failure becomes one sentence."""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import httpx

    from omlxd.config.paths import Paths
    from omlxd.service.definition import Definition

PATIENCE = 5.0
"""Seconds to wait. The daemon answers from memory, or within one tick of the guard."""


class Unreachable(Exception):
    """There is no daemon to talk to, or it does not answer; the text is for the user."""


class NotRunning(Unreachable):
    """The local daemon certainly does not run."""


class Refused(Exception):
    """The daemon answered with an error, or would do so; the text is for the user."""


def add_daemon_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments by which a command finds its daemon."""
    parser.add_argument("--url", help="address of the daemon (else OMLXD_URL, else the local one)")
    parser.add_argument("--home", metavar="DIR", help="the one folder that holds all files")


def find_url(url: str | None, home: str | None, environ: Mapping[str, str]) -> str:
    """The address of the daemon. Raises Unreachable, or NotRunning without a local daemon."""
    named = url or environ.get("OMLXD_URL")
    if named:
        named = named if "://" in named else f"http://{named}"
        return named.rstrip("/").removesuffix("/v1")
    # Imported late: a command with an address does not need it.
    from omlxd import instance

    state = daemon_paths(home, environ).state
    if instance.is_closed(state):
        raise Unreachable(
            f"you may not look into {state}, which another account's daemon has. Run this with "
            "sudo, or name the daemon with --url."
        )
    path, found = state / instance.RECORD, instance.read_record(state)
    # Importing psutil would take longer than the rest of a command.
    alive = found is not None and instance.pid_exists(found.pid)
    if not alive and instance.is_held(state):
        raise Unreachable(
            f"omlxd runs (its lock is held), but there is no {path} of it, as on a "
            "full disk: name its address with --url."
        )
    if not path.exists():
        raise NotRunning(
            f"omlxd is not running (nothing in {state}). Start it with `omlxd serve`, or name "
            "a daemon elsewhere with --url."
        )
    who = "the process" if found is None else f"process {found.pid}"
    if found is None or not alive:
        raise NotRunning(
            f"omlxd is not running: {who}, which left {path}, is gone. Start it with `omlxd serve`."
        )
    if found.url is None:
        raise Unreachable(f"omlxd ({who}) has not opened its port yet.")
    return found.url


def find_key(url: str | None, home: str | None, environ: Mapping[str, str]) -> str | None:
    """The API key to send: OMLXD_KEY, else the one that the local daemon wrote for its own user.

    The local key is never sent to a daemon that was given by its address.
    """
    if url or environ.get("OMLXD_URL"):
        return _named_key(environ)
    return key_for(daemon_paths(home, environ).state, environ)


def key_for(state: Path, environ: Mapping[str, str]) -> str | None:
    """OMLXD_KEY, else the key that the daemon of this folder has written."""
    from omlxd.api.key_file import LOCAL_FILE

    try:
        left = (state / LOCAL_FILE).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        left = ""
    return _named_key(environ) or left or None


def _named_key(environ: Mapping[str, str]) -> str | None:
    return environ.get("OMLXD_KEY", "").strip() or None


class Daemon:
    """One daemon over HTTP."""

    def __init__(self, url: str, key: str | None = None) -> None:
        """Raises Unreachable for a bad URL, or for a key that cannot be sent."""
        self._httpx = _import_httpx()
        self._failures = (self._httpx.HTTPError, self._httpx.InvalidURL, UnicodeError)
        self.url = url
        if key is not None and not key.isascii():
            raise Unreachable("the API key in OMLXD_KEY cannot be one: it is not plain ASCII.")
        # Without the proxies and certificates of the environment: loading them takes too long.
        try:
            self._client = self._httpx.Client(
                base_url=url,
                headers={} if key is None else {"authorization": f"Bearer {key}"},
                timeout=PATIENCE,
                trust_env=False,
                verify=url.startswith("https:"),
            )
        except self._httpx.InvalidURL as error:
            raise Unreachable(f"{url!r} is not the address of a daemon ({error}).") from None

    def get(self, path: str) -> Any:
        """Raises Unreachable, Refused."""
        return self._ask("GET", path, None)

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        """Raises Unreachable, Refused."""
        return self._ask("PUT", path, body)

    def post(self, path: str, body: Mapping[str, Any], patience: float | None = PATIENCE) -> Any:
        """``patience``: None waits without limit. Raises Unreachable, Refused."""
        return self._ask("POST", path, body, patience)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Raises Unreachable, Refused."""
        return self._ask("PATCH", path, body)

    def close(self) -> None:
        self._client.close()

    def events(self, path: str) -> Iterator[Any]:
        """The data of a stream of events, until the daemon ends it. Raises as ``get``."""
        try:
            timeout = self._httpx.Timeout(PATIENCE, read=None)
            with self._client.stream("GET", path, timeout=timeout) as answer:
                if answer.status_code != 200:
                    answer.read()
                    self._value(answer)
                for line in answer.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield json.loads(line[6:])
        except self._failures as error:
            raise Unreachable(self._reason(error)) from None

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        patience: float | None = PATIENCE,
    ) -> Any:
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            timeout = self._httpx.Timeout(PATIENCE, read=patience)
            answer = self._client.request(
                method, path, content=content, headers=headers, timeout=timeout
            )
        except self._failures as error:
            raise Unreachable(self._reason(error)) from None
        return self._value(answer)

    def _value(self, answer: "httpx.Response") -> Any:
        try:
            value = answer.json()
        except (ValueError, RecursionError):
            raise Unreachable(f"something else than omlxd answers at {self.url}.") from None
        if answer.status_code == 200:
            return value
        match value:
            case {"error": {"message": str(message)}}:
                raise Refused(message)
            case _:
                raise Refused(f"{self.url} answered with {answer.status_code}.")

    def _reason(self, error: Exception) -> str:
        match error:
            case self._httpx.ConnectError():
                return f"nothing answers at {self.url} ({error})."
            case self._httpx.TimeoutException():
                return f"{self.url} does not answer within {PATIENCE:.0f} s."
            case _:
                return f"talking to {self.url} failed ({error})."


def connect(arguments: argparse.Namespace) -> Daemon:
    """The daemon that the arguments mean. Raises Unreachable."""
    where = (arguments.url, arguments.home, os.environ)
    return Daemon(find_url(*where), find_key(*where))


def model_statuses(daemon: Daemon) -> list[dict[str, Any]]:
    """The models in ``/status``. Raises Unreachable, Refused."""
    status = daemon.get("/status")
    if not isinstance(status, dict) or not isinstance(status.get("models"), list):
        raise Unreachable(f"something else than omlxd answers at {daemon.url}.")
    return list(status["models"])


def model_path(model: str, rest: str = "") -> str:
    """The path of ``model`` in the API. Raises Refused for a name that is another path."""
    if {"", ".", ".."} & set(model.split("/")):
        raise Refused(f"'{model}' is not the name of a model; `omlxd models list` shows them.")
    return f"/v1/models/{quote(model, safe='/')}{rest}"


def print_error(error: Unreachable | Refused) -> int:
    """Print the error for the user. Returns the exit code."""
    print(f"omlxd: {error}", file=sys.stderr)
    return 1


def _import_httpx() -> Any:
    # The command line of httpx imports rich and click, and that doubles the time of the import.
    hidden = "httpx._main"
    if "httpx" not in sys.modules:
        sys.modules[hidden] = None  # type: ignore[assignment]
    import httpx

    if sys.modules.get(hidden) is None:
        sys.modules.pop(hidden, None)
    return httpx


def daemon_paths(home: str | None, environ: Mapping[str, str]) -> "Paths":
    """The paths by ``--home``, else OMLXD_HOME, else the installed service, else the usual paths.

    Raises ConfigError for the home of an unknown ``~NAME``.
    """
    from omlxd.config.paths import standard_paths

    named = home or environ.get("OMLXD_HOME") or None
    if named:
        return standard_paths(Path(named), None)
    definition = _installed()
    return standard_paths(None, None) if definition is None else service_paths(definition, None)


def service_paths(definition: "Definition", config_file: Path | None) -> "Paths":
    """The paths of the service with this definition. This shell's XDG_* variables are ignored.

    ``config_file``: replaces that of the definition. Raises ConfigError as ``daemon_paths``.
    """
    from omlxd.config.paths import APP, Paths, standard_paths

    config_file = config_file or definition.config_file
    if definition.home is not None:
        return standard_paths(definition.home, config_file)
    usual = standard_paths(None, config_file)
    cache = definition.environment.get("XDG_CACHE_HOME")
    state = definition.state or usual.state
    return Paths(
        config_file=usual.config_file,
        state=state,
        models=state.parent / usual.models.name,
        cache=Path(cache) / APP if cache else usual.cache,
        logs=definition.logs or usual.logs,
    )


def _installed() -> "Definition | None":
    import os
    import sys

    from omlxd.service.definition import installed_definition

    return installed_definition(sys.platform, os.geteuid(), Path.home())
