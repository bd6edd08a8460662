"""Who may call: the Host, Origin and content-type checks that keep web pages out, and CORS.

A server that listens on loopback only can still be called by a browser: a page can make its own
name resolve to 127.0.0.1 (DNS rebinding), or post without a preflight (request forgery).
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from omlxd.api.envelope import add_headers
from omlxd.api.errors import allowed_methods, nothing_at
from omlxd.errors import Forbidden, InvalidRequest, UnsupportedMediaType
from omlxd.units import KiB, format_bytes

LOOPBACK: Final = ("127.0.0.1", "[::1]", "localhost")
MOST_HEADERS: Final = 200
MOST_HEADER_BYTES: Final = 32 * KiB

_CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,64}")
_REQUEST_HEADERS: Final = "authorization, content-type, x-api-key, x-request-id"
_ANSWER_HEADERS: Final = "x-request-id, retry-after, x-should-retry"


@dataclass(frozen=True, slots=True)
class Callers:
    """The host names and origins that are allowed.

    Attributes:
        hosts: lower-case ``name:port`` texts that the Host header may be.
        any_port: lower-case names that it may be with any port.
        literal_port: the port with which every IP address is accepted; None for none.
        origins: lower-case origins of web pages that may call.
    """

    hosts: frozenset[str]
    any_port: frozenset[str]
    literal_port: int | None
    origins: frozenset[str]

    def host_allowed(self, host: str) -> bool:
        host = host.lower()
        if host in self.hosts:
            return True
        name, port = _split_port(host)
        if name in self.any_port:
            return True
        return self.literal_port is not None and port == self.literal_port and _is_address(name)

    def origin_allowed(self, origin: str) -> bool:
        origin = origin.lower()
        if origin in self.origins:
            return True
        # Pages of this server itself: their origin is a name that the Host header may have.
        scheme, _, host = origin.partition("://")
        return scheme == "http" and self.host_allowed(host)

    def listed(self, origin: str) -> bool:
        return origin.lower() in self.origins


def callers(
    *, bound_host: str, port: int, extra_hosts: Iterable[str], origins: Iterable[str]
) -> Callers:
    """The allow-lists of a server bound to ``bound_host`` and ``port``."""
    hosts = {f"{name}:{port}" for name in LOOPBACK}
    # DNS rebinding needs a name. When bound to all addresses, every IP address is accepted.
    unspecified = _is_address(bound_host) and ipaddress.ip_address(bound_host).is_unspecified
    if not unspecified:
        hosts.add(f"{_bracketed(bound_host)}:{port}".lower())
    if port == 80:
        hosts.update(LOOPBACK)
    any_port: set[str] = set()
    for extra in extra_hosts:
        _, extra_port = _split_port(extra)
        (any_port if extra_port is None else hosts).add(extra.lower())
    return Callers(
        hosts=frozenset(hosts),
        any_port=frozenset(any_port),
        literal_port=port if unspecified else None,
        origins=frozenset(origin.lower().rstrip("/") for origin in origins),
    )


class CallerCheck:
    """ASGI: refuses requests that ``callers`` does not allow, before anything else reads them."""

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        _check_size(headers)
        _check_target(scope.get("path", "/"))
        self._check_host(headers, local=over_socket(scope))
        origin = self._check_origin(headers)
        if origin is not None and self._callers.listed(origin):
            add_headers(
                scope,
                ("access-control-allow-origin", origin),
                ("access-control-expose-headers", _ANSWER_HEADERS),
                ("vary", "Origin"),
            )
        method = scope.get("method", "GET")
        if method == "OPTIONS":
            await self._options(scope, origin)(scope, receive, send)
            return
        if method in _CHANGING:
            _check_content(headers)
        await self._app(scope, receive, send)

    def _check_host(self, headers: list[tuple[bytes, bytes]], *, local: bool) -> None:
        hosts = header_values(headers, b"host")
        if len(hosts) != 1 or not hosts[0]:
            raise Forbidden("The request needs exactly one Host header.")
        # A web page cannot use a Unix socket. Clients of one send localhost with any port.
        if local and _split_port(hosts[0].lower())[0] in LOOPBACK:
            return
        if not self._callers.host_allowed(hosts[0]):
            raise Forbidden(
                f"The host name '{hosts[0][:100]}' is not one of this server's. Call it by "
                "127.0.0.1 or localhost and its port, or add the name to api.allowed_hosts."
            )

    def _check_origin(self, headers: list[tuple[bytes, bytes]]) -> str | None:
        origins = header_values(headers, b"origin")
        if len(origins) > 1 or (origins and not self._callers.origin_allowed(origins[0])):
            raise Forbidden(
                f"Web pages of '{origins[0][:100]}' may not call this server. If they should, "
                "add that origin to api.allowed_origins."
            )
        listed = bool(origins) and self._callers.listed(origins[0])
        if not listed and "cross-site" in header_values(headers, b"sec-fetch-site"):
            raise Forbidden("Requests from web pages of other sites are refused.")
        return origins[0] if origins else None

    def _options(self, scope: Scope, origin: str | None) -> Response:
        allowed = ", ".join(allowed_methods(scope))
        listed = origin is not None and self._callers.listed(origin)
        if not (allowed or listed):
            raise nothing_at("OPTIONS", scope["path"])
        headers = {"allow": allowed}
        if listed:
            # Also for a path that does not exist: the page can read why only after this.
            headers |= {
                "access-control-allow-methods": allowed,
                "access-control-allow-headers": _request_headers(scope["headers"]),
                "access-control-max-age": "600",
            }
        return Response(status_code=204, headers=headers)


def _request_headers(asked: list[tuple[bytes, bytes]]) -> str:
    """The headers that a page may send: all that it asks for, since every SDK has its own."""
    lists = header_values(asked, b"access-control-request-headers")
    names = [name.strip().lower() for names in lists for name in names.split(",")]
    sound = [name for name in names if _HEADER_NAME.fullmatch(name)]
    return ", ".join(dict.fromkeys(sound[:MOST_HEADERS])) or _REQUEST_HEADERS


def _check_content(headers: list[tuple[bytes, bytes]]) -> None:
    # A page can post text/plain and forms without a preflight, but not JSON.
    kinds = header_values(headers, b"content-type")
    kind, _, parameters = kinds[0].partition(";") if len(kinds) == 1 else ("", "", "")
    if kind.strip().lower() != "application/json":
        raise UnsupportedMediaType(
            f"The content type must be application/json, not '{', '.join(kinds)[:100]}'. "
            "Requests without a body need it as well."
        )
    charset = parameters.lower().replace(" ", "").replace('"', "")
    if charset.startswith("charset=") and charset != "charset=utf-8":
        raise UnsupportedMediaType("JSON is read as UTF-8 only; drop the charset.")


def _check_size(headers: list[tuple[bytes, bytes]]) -> None:
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    if size > MOST_HEADER_BYTES or len(headers) > MOST_HEADERS:
        raise InvalidRequest(
            f"The request has too much in its headers: at most {MOST_HEADERS} of them, and "
            f"{format_bytes(MOST_HEADER_BYTES)} together."
        )


def _check_target(path: str) -> None:
    # "GET http://other/path" is for a proxy, and "*" names no resource.
    if not path.startswith("/"):
        raise InvalidRequest("The request's target must be a path that begins with '/'.")
    if (control := _CONTROL.search(path)) is not None:
        raise InvalidRequest(
            f"The request's path holds a control character (%{ord(control[0]):02X}), which is in "
            "no path and no name of this server; leave it out."
        )


def over_socket(scope: Scope) -> bool:
    """Whether the request came by the Unix socket: then uvicorn gives a path and no port."""
    server = scope.get("server")
    return server is not None and server[1] is None


def header_values(headers: list[tuple[bytes, bytes]], name: bytes) -> list[str]:
    """Every value of the header ``name`` (lower case), without white space around it."""
    return [value.decode("latin-1").strip() for key, value in headers if key == name]


def _split_port(host: str) -> tuple[str, int | None]:
    name, colon, port = host.rpartition(":")
    if colon and port.isascii() and port.isdigit() and not (":" in name and name[-1] != "]"):
        return name, int(port)
    return host, None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
