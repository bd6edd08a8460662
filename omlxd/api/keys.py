"""Asks callers for an API key when there are keys, and holds each key to its scope.

Without any key, whoever reaches the loopback address may do everything, and clients may send
whatever they like as a key. As soon as there is one, everything but ``/health`` needs one: a
caller without a key must not be able to do more than one with a key for inference. The Unix
socket needs none: only the daemon's own user can open it.
"""

import hmac
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from omlxd.api.key_file import Scope, StoredKey, digest, read_keys
from omlxd.api.security import header_values, over_socket
from omlxd.errors import ConfigError, Forbidden, Unauthorized

log = structlog.get_logger(__name__)

OPEN: Final = frozenset({"/health"})
LOOKS: Final = frozenset({"/ready", "/openapi.json", "/v1/version", "/v1/models"})
"""GET with any key; so is each model under /v1/models/."""
ANSWERS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""POST with a key for inference. Whatever is in none of these tables needs one for control."""

_HOW: Final = "Send one as 'Authorization: Bearer KEY' or 'x-api-key: KEY', never in the URL."


def needed_scopes(method: str, path: str) -> tuple[Scope, ...]:
    """Any of these does; empty: no key is asked for."""
    if path in OPEN:
        return ()
    if method in ("GET", "HEAD") and (path in LOOKS or path.startswith("/v1/models/")):
        return (Scope.INFERENCE, Scope.CONTROL)
    if method == "POST" and path in ANSWERS:
        return (Scope.INFERENCE,)
    return (Scope.CONTROL,)


Stamp = tuple[int, ...] | None
"""Changes with the file; None when there is no file."""


def file_stamp(path: Path) -> Stamp:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


class KeyRing:
    """The keys in force; a file that was changed is read again at the next question."""

    def __init__(
        self,
        path: Path,
        *,
        extra: Sequence[StoredKey] = (),
        open_when_empty: bool,
        stamp: Callable[[Path], Stamp] = file_stamp,
    ) -> None:
        """``extra``: keys that the file does not hold; they do not close an open server.

        Raises ConfigError as ``read_keys``.
        """
        self._path = path
        self._extra = tuple(extra)
        self._open_when_empty = open_when_empty
        self._stamp = stamp
        self._seen = stamp(path)
        self._keys = read_keys(path)

    @property
    def is_open(self) -> bool:
        """Whether no key is asked for."""
        self._refresh()
        return self._open_when_empty and not self._keys

    def find(self, key: str) -> StoredKey | None:
        """The stored key that ``key`` is. Takes as long for a wrong one as for a right one."""
        presented, found = digest(key), None
        for stored in (*self._keys, *self._extra):
            if hmac.compare_digest(stored.digest, presented):
                found = stored
        return found

    def _refresh(self) -> None:
        stamp = self._stamp(self._path)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._keys = read_keys(self._path)
        except ConfigError as error:
            # Those read last stay in force: a damaged file must not open the server.
            log.error("keys_unreadable", mistakes=error.mistakes)
            return
        log.info("keys_changed", names=[key.name for key in self._keys])


class KeyCheck:
    """ASGI: lets a request through when its key allows it; else Unauthorized or Forbidden."""

    def __init__(self, app: ASGIApp, ring: KeyRing) -> None:
        self._app = app
        self._ring = ring

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not over_socket(scope):
            needed = needed_scopes(scope["method"], scope["path"])
            if needed and not self._ring.is_open:
                self._demand(scope["headers"], needed)
        await self._app(scope, receive, send)

    def _demand(self, headers: list[tuple[bytes, bytes]], needed: tuple[Scope, ...]) -> None:
        stored = self._ring.find(presented_key(headers))
        if stored is None:
            raise Unauthorized(
                "This API key is not known here, or was revoked. `omlxd key list` names those "
                "that are; `omlxd key add NAME` makes one."
            )
        structlog.contextvars.bind_contextvars(key=stored.name)
        if not any(stored.scope.covers(scope) for scope in needed):
            raise Forbidden(
                f"The key '{stored.name}' is for {stored.scope.value} only; this needs one for "
                f"{needed[0].value} (omlxd key add NAME --scope {needed[0].value})."
            )


def presented_key(headers: list[tuple[bytes, bytes]]) -> str:
    """The one key that a request carries; the same one in both headers is one.

    Raises Unauthorized when there is none, or more than one, without repeating any.
    """
    bearers = [_bearer(value) for value in header_values(headers, b"authorization")]
    plain = header_values(headers, b"x-api-key")
    if len(bearers) > 1 or len(plain) > 1:
        raise Unauthorized("The request carries more than one API key; send exactly one.")
    keys = [key for key in (*bearers, *plain) if key]
    if not keys:
        raise Unauthorized(f"This server asks for an API key. {_HOW}")
    if len({digest(key) for key in keys}) > 1:
        raise Unauthorized(
            "The request carries two different API keys, in Authorization and in x-api-key; "
            "send exactly one."
        )
    return keys[0]


def _bearer(value: str) -> str:
    scheme, _, key = value.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthorized(f"The Authorization header holds no Bearer key. {_HOW}")
    return key.strip()
