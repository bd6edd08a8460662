"""Asks callers for an API key when there are keys, and limits each key to its scope.

When there is no key, every caller on this machine may do everything, and what a client sends as a
key is ignored. When there is one, everything but ``/health`` needs a key: otherwise a caller
without a key could do more than a caller with a key for inference. The Unix socket needs no key:
only the daemon's own user can open it.
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
"""GET with any key. The same holds for each model under /v1/models/."""
ANSWERS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""POST with a key for inference. Everything that is in no table here needs a key for control."""

_HOW: Final = "Send one as 'Authorization: Bearer KEY' or 'x-api-key: KEY', never in the URL."


def needed_scopes(method: str, path: str) -> tuple[Scope, ...]:
    """A key with one of these scopes is enough; empty: no key is needed."""
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
    """The keys in force. The file is read again when it has changed."""

    def __init__(
        self,
        path: Path,
        *,
        extra: Sequence[StoredKey] = (),
        open_when_empty: bool,
        stamp: Callable[[Path], Stamp] = file_stamp,
    ) -> None:
        """``extra``: keys that are not in the file. A server with only these asks for no key.

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
        """The stored key that equals ``key``. A wrong key takes as long as a right one."""
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
            # The keys that were read before stay in force: a damaged file must not open the server.
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
    """The one key of a request. It may be in both headers if it is the same.

    Raises Unauthorized when there is none or more than one; the error does not repeat them.
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
